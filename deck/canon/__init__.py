"""The canonical values: one request shape, one event stream, one answer; they know no wire and do no I/O."""
