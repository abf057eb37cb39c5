"""Where one server is found: its socket's path, with the embedded server started, or started again, when that is meant.

Its methods block; asyncio calls them in a thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockfast.clock import now
from lockfast.errors import Misused

if TYPE_CHECKING:
    from lockfast.embedded import Attachment
    from lockfast.endpoints import Endpoint
    from lockfast.errors import Unreachable


class Door:
    """One endpoint, and the hold on the embedded server if it is that one."""

    __slots__ = ("_attaching", "_attachment", "_closed", "endpoint")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        endpoint.tls_context()  # certificates that cannot be read are a mistake of the caller, and told at once
        self._attachment: Attachment | None = None
        self._attaching = threading.Lock()
        self._closed = False

    def path(self) -> str:
        """The path of the server's socket; empty for one that is reached by host and port."""
        return self._attach().socket_path if self.endpoint.embedded else self.endpoint.path

    def revive(self, failure: Unreachable, by: float) -> None:
        """After a failure to connect: start the embedded server again if it had ended, else raise the failure."""
        if not self.endpoint.embedded or not isinstance(failure.__cause__, (ConnectionRefusedError, FileNotFoundError)):
            try:
                raise failure
            finally:
                del failure  # its traceback leads here: see Threads.acquire
        self._attach().revive(wait_s=max(by - now(), 1.0))

    def close(self) -> None:
        """Let go of the embedded server. One that is being started at this moment is let go of when it has been."""
        self._closed = True
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.close()
        if self.endpoint.scout is not None:
            self.endpoint.scout.look()

    def forget(self) -> None:
        """In a forked child: the attachment is the parent's, and so may be whoever holds the lock."""
        self._attaching = threading.Lock()
        self.endpoint.scout = None
        self.close()
        self._closed = False

    def _attach(self) -> Attachment:
        with self._attaching:
            if self._attachment is None:
                from lockfast import embedded

                attachment = embedded.attach()
                if self._closed:
                    attachment.close()
                    raise Misused("this client was closed meanwhile")
                self._attachment = attachment
            return self._attachment
