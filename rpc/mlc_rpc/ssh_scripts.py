"""Scripts for the board's sh: constants, filled in with values that this module makes.

The command that a board is given is SHELL, one word, whatever the user's login shell is; the script
goes to its stdin. Each script begins with lines that do nothing, since a start file of the login
shell may read some. Answers begin with `mlc-` and a nonce of the call, since start files may print
anything. The cache is the first usable directory of PLACES. Each is made with mode 0700, and used
only if it is a directory, not a link, and the user's own.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

SHELL = "sh"
PLACES = 4
EATEN_LINES = 16  # that start files may read

PROBE = """
echo @mlc@board "$(uname -s)" "$(uname -m)" $(head -c 20 /bin/sh | od -An -v -tu1)
"""
_PLACE = """
umask 077
place() {
    u=$(id -u)
    case $1 in
    0) case ${XDG_CACHE_HOME-} in /*) d=$XDG_CACHE_HOME/mlc-runtime ;; *) d= ;; esac ;;
    1) d=${HOME:+$HOME/.cache/mlc-runtime} ;;
    2) d=/var/tmp/mlc-runtime-$u ;;
    3) d=/dev/shm/mlc-runtime-$u ;;
    esac
    [ -n "$d" ]
}
ours() { [ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ]; }
"""
_PROGRAM = (
    _PLACE
    + """
f=runtime-@hash@
whole() {
    [ -f "$1" ] && [ ! -L "$1" ] && [ "$(wc -c < "$1")" -eq @size@ ] || return 1
    command -v sha256sum > /dev/null || return 0
    [ "$(sha256sum < "$1" | cut -c 1-64)" = @hash@ ]
}
starts() {
    "$1" --version > /dev/null 2>&1 < /dev/null
    [ $? -ne 126 ]
}
"""
)
# The shell's status 126 means that a program may not be started.
CHECK = (
    _PROGRAM
    + """
for n in 0 1 2 3; do
    place $n && ours && chmod 700 "$d" && whole "$d/$f" && starts "$d/$f" || continue
    echo @mlc@there $n
    exit 0
done
echo @mlc@absent
"""
)
# A folder that was made in vain does not stay.
STORE = (
    _PROGRAM
    + """
place @place@ || exit 4
no() {
    echo "$d: $1" >&2
    rm -f "$t"
    [ -z "$made" ] || rmdir "$d"
    exit 4
}
t= made=
[ -d "$d" ] || made=yes
mkdir -p "$d" || exit 4
ours || no "it is a link, or another user's"
chmod 700 "$d" || exit 4
t=$d/.part-@random@
set -C
echo @mlc@ready
cat > "$t" || no "it cannot be written to"
chmod 700 "$t" && whole "$t" || no "what was written is not what was sent"
starts "$t" || no "programs may not be started from there (noexec)"
mv -f "$t" "$d/$f" && echo @mlc@there @place@
"""
)
# Touched, since the least recently used entry is evicted first.
START = (
    _PROGRAM
    + """
place @place@ && touch -c "$d/$f"
echo @mlc@start
exec "$d/$f" --cache "$d"
"""
)
CLEAN = (
    _PLACE
    + """
for n in 0 1 2 3; do
    place $n && ours || continue
    k=$(du -sk "$d" | cut -f 1)
    rm -rf "$d" && echo @mlc@clean "$k" "$d"
done
echo @mlc@done
"""
)


@dataclass(frozen=True, slots=True)
class Script:
    """What is sent to the board's sh, and the beginning of each of its answers."""

    text: str
    mark: str

    @property
    def sent(self) -> bytes:
        # In braces, so that sh has read all of it before it begins: what follows is the data.
        return (":\n" * EATEN_LINES + "{\n" + self.text + "\nexit\n}\n").encode()

    def word(self, name: str) -> bytes:
        """The line by which the script says that it has come so far."""
        return f"{self.mark}{name}\n".encode()

    def found(self, pattern: str, text: str) -> list[re.Match[str]]:
        """The answers in a text that match."""
        return list(re.finditer(re.escape(self.mark) + pattern, text))

    def answered(self, text: str) -> bool:
        return self.mark in text


def script(text: str, content: bytes = b"", place: int = 0) -> Script:
    """`text`, about a program of this content, in this place."""
    mark = f"mlc-{secrets.token_hex(8)}-"
    filled = text.replace("@hash@", hashlib.sha256(content).hexdigest())
    filled = filled.replace("@size@", str(len(content))).replace("@place@", str(place))
    filled = filled.replace("@random@", secrets.token_hex(8)).replace("@mlc@", mark)
    return Script(filled, mark)
