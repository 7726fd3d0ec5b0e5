# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as exceptions with the reason code of the C interface."""
from __future__ import annotations


class LehrError(RuntimeError):
    """A call was refused or failed; the state is as it was before.

    kind    the class of the status, for example "refused", "invalid", "unsupported"
    reason  why, for example "over_budget", "mask", "layout_mismatch"; "none" if there is no more to say
    status  the number that the C interface returned, 0 where Python itself refused
    """

    def __init__(self, kind: str, reason: str, text: str, status: int = 0) -> None:
        super().__init__(f"{text} ({kind}{'' if reason == 'none' else ', ' + reason})")
        self.kind = kind
        self.reason = reason
        self.text = text
        self.status = status


class LibraryError(LehrError):
    """liblehr.so is missing, broken, or of another version."""

    def __init__(self, text: str) -> None:
        super().__init__("not_found", "none", text)


class TraceError(LehrError):
    """A file that is no attention trace, or values that would make none."""

    def __init__(self, text: str) -> None:
        super().__init__("corrupt", "none", text)


def invalid(text: str, reason: str = "none") -> LehrError:
    return LehrError("invalid", reason, text)


def unsupported(text: str, reason: str = "none") -> LehrError:
    return LehrError("unsupported", reason, text)
