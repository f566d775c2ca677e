"""Ask a llama-server whether it is ready and what it is.

Knows `/health`, `/props` and `/v1/models`. Does not know how the server came to run.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from enum import Enum
from typing import Any

import httpx

from deck.contracts import Address, Facts

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
# Servers before `/props`, and proxies that hide it.
_NO_PROPS = (404, 405, 501)


class Health(Enum):
    """What `/health` says."""

    SILENT = "nothing listens yet"
    LOADING = "it loads"
    READY = "it serves"
    STRANGE = "it answers something else"


class Probe:
    """One server's routes of observation; made by `probing`."""

    def __init__(self, client: httpx.AsyncClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self.said = ""
        self.status: int | None = None
        self.was_late = False

    async def health(self) -> Health:
        """Return its health; `said` then holds what was strange or why it is silent, `was_late` if it took too long."""
        try:
            answer = await self._client.get(f"{self._prefix}/health")
        except httpx.HTTPError as exc:
            self.said = str(exc) or type(exc).__name__
            self.was_late = isinstance(exc, httpx.TimeoutException)
            return Health.SILENT
        self.status = answer.status_code
        self.said = f"GET {self._prefix}/health answered {answer.status_code}"
        if answer.status_code == httpx.codes.OK:
            return Health.READY
        return Health.LOADING if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else Health.STRANGE

    async def status_of(self, path: str) -> int:
        """Return the status that a path answers with.

        Raises:
            httpx.HTTPError: it cannot be reached, or broke off.
        """
        return (await self._client.get(f"{self._prefix}{path}")).status_code

    async def props(self) -> Mapping[str, Any] | None:
        """Return `/props`, None where the server has no such route.

        Raises:
            httpx.HTTPError: it refused or broke off.
        """
        answer = await self._client.get(f"{self._prefix}/props")
        if answer.status_code in _NO_PROPS:
            return None
        answer.raise_for_status()
        return _object(answer)

    async def slot(self, number: int, action: str, file: str, *, limit: float) -> int:
        """Save or restore one slot's prompt cache and return its tokens, within so many seconds.

        Raises:
            httpx.HTTPError: it refused, as a server without `--slot-save-path` does, or broke off.
        """
        url = f"{self._prefix}/slots/{number}?action={action}"
        answer = await self._client.post(url, json={"filename": file}, timeout=limit)
        answer.raise_for_status()
        found = _object(answer)
        return _typed(found.get("n_saved", found.get("n_restored")), int) or 0

    async def meta(self) -> Mapping[str, Any]:
        """Return what `/v1/models` says of the model, as its parameters, size and trained context; {} = nothing."""
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._client.get(f"{self._prefix}/v1/models")
            found = _object(answer).get("data") if answer.is_success else None
            if isinstance(found, list) and found and isinstance(found[0], dict):
                meta = found[0].get("meta")
                return meta if isinstance(meta, dict) else {}
        return {}


@contextlib.asynccontextmanager
async def probing(
    address: Address, key: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[Probe]:
    """Open a client for one server; the transport, httpx's own if none is given, is closed at the end."""
    if transport is None:
        transport = httpx.AsyncHTTPTransport(uds=address.uds) if address.uds else httpx.AsyncHTTPTransport()
    scheme = "https" if address.tls else "http"
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = "http://localhost" if address.uds else f"{scheme}://{host}:{address.port}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, transport=transport, timeout=_TIMEOUT, trust_env=False
    ) as client:
        yield Probe(client, address.prefix)


def facts_of(props: Mapping[str, Any], metadata: Mapping[str, Any]) -> Facts:
    """Return the facts in `/props`; what is missing or of another type is not known."""
    settings = props.get("default_generation_settings")
    return Facts(
        context=_typed(settings.get("n_ctx"), int) if isinstance(settings, dict) else None,
        slots=_typed(props.get("total_slots"), int),
        modalities=_booleans(props.get("modalities")),
        template=_typed(props.get("chat_template"), str),
        template_caps=_booleans(props.get("chat_template_caps")),
        build=_typed(props.get("build_info"), str),
        metadata=metadata,
        sampling=_sampling(settings.get("params")) if isinstance(settings, dict) else {},
    )


def _object(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _typed(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _numbers(value: Any) -> Mapping[str, float]:
    """Return the numbers of an object; llama-server holds them in 32 bits, so that later digits are noise."""
    if not isinstance(value, dict):
        return {}
    found = {name: item for name, item in value.items() if isinstance(item, int | float) and not isinstance(item, bool)}
    return {name: float(f"{item:.7g}") if isinstance(item, float) else item for name, item in found.items()}


def _sampling(value: Any) -> Mapping[str, Any]:
    """Return the numbers, and which samplers run in which order, where it is told."""
    found: dict[str, Any] = dict(_numbers(value))
    names = value.get("samplers") if isinstance(value, dict) else None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        found["samplers"] = tuple(names)
    return found


def _booleans(value: Any) -> Mapping[str, bool]:
    return {name: item for name, item in value.items() if isinstance(item, bool)} if isinstance(value, dict) else {}
