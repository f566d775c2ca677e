"""One client connection: uvicorn's HTTP over httptools, with a bound on what it holds before Deck is asked.

Knows bytes and heads. Neither httptools nor uvicorn limits the size of a head, a trailer or a chunk's extension, so a
client without a token could fill the memory.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from deck import json
from deck.http import new_request_id

# More than any client sends; what fits one read is judged by the application, which answers 431 as well.
MOST_HELD = 64 * 1024
_PHRASES = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class Connection(HttpToolsProtocol):
    """Refuses a head that does not end; answers what is no HTTP in JSON."""

    _held = 0
    _has_moved = False
    _is_in_body = False

    def data_received(self, data: bytes) -> None:
        """Parse `data`; refuse when the parser holds too much that is neither a whole head nor a body."""
        self._has_moved = False
        super().data_received(data)
        if self._has_moved:
            self._held = 0
            return
        self._held += len(data)
        if self._held > MOST_HELD and not self.transport.is_closing():
            self._refuse(431, f"the request's headers are larger than {MOST_HELD // 1024} KiB; send fewer or shorter")

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._has_moved = True
        self._is_in_body = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; a trailer is of no use to anyone and not kept."""
        if not self._is_in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End a head."""
        self._has_moved = self._is_in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._has_moved = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(400, msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: clients that try WebSocket first do so at every start, and get 426."""

    def _refuse(self, status: int, message: str) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
            body = json.dumps({"error": error})
            head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
                status,
                _PHRASES[status],
                len(body),
            )
            self.transport.write(b"%bx-request-id: %b\r\nconnection: close\r\n\r\n" % (head, new_request_id().encode()))
            self.transport.write(body)
        self.transport.close()
