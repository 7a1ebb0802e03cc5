"""Scripts for the board's sh: constants, filled in with values that this module makes.

Their answers begin with a word of ours, since a login shell may print more. The cache is the first
usable directory of PLACES. Each is made with mode 0700, and used only if it is a directory, not a
link, and the user's own.
"""

from __future__ import annotations

import hashlib
import secrets
import shlex

PLACES = 4

PROBE = """
echo mlc-board "$(uname -s)" "$(uname -m)" $(head -c 20 /bin/sh | od -An -v -tu1)
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
    echo mlc-there $n
    exit 0
done
echo mlc-absent
"""
)
STORE = (
    _PROGRAM
    + """
place @place@ || exit 4
no() { echo "$d: $1" >&2; rm -f "$t"; exit 4; }
t=
mkdir -p "$d" || exit 4
ours || no "it is a link, or another user's"
chmod 700 "$d" || exit 4
t=$d/.part-@random@
set -C
cat > "$t" || no "it cannot be written to"
chmod 700 "$t" && whole "$t" || no "what was written is not what was sent"
starts "$t" || no "programs may not be started from there (noexec)"
mv -f "$t" "$d/$f" && echo mlc-there @place@
"""
)
# Touched, since the least recently used entry is evicted first.
START = (
    _PROGRAM
    + """
place @place@ && touch -c "$d/$f"
exec "$d/$f" --cache "$d"
"""
)
CLEAN = (
    _PLACE
    + """
for n in 0 1 2 3; do
    place $n && ours || continue
    k=$(du -sk "$d" | cut -f 1)
    rm -rf "$d" && echo mlc-clean "$k" "$d"
done
echo mlc-done
"""
)


def script(text: str, content: bytes = b"", place: int = 0) -> str:
    """A command for the board: `text` about a program of this content, in this place."""
    filled = text.replace("@hash@", hashlib.sha256(content).hexdigest())
    filled = filled.replace("@size@", str(len(content))).replace("@place@", str(place))
    return "exec sh -c " + shlex.quote(filled.replace("@random@", secrets.token_hex(8)))
