#!/bin/sh
# Installs strobe: builds it in a clone of the repository, or unpacks an archive of a release.
#
#   ./install.sh [--prefix DIR] [--service] [ARCHIVE]
#
# ARCHIVE is strobe-VERSION-OS-ARCH.tar.gz; it is checked against the file SHA256SUMS beside it. Without one, Go is
# needed. The program goes to DIR/bin: /usr/local/bin for root, ~/.local/bin for others. --service also installs a unit
# for systemd, for the whole machine as root and for this user otherwise.
set -eu
fail() { echo "install.sh: $*" >&2; exit 1; }

if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
service=no
archive=
while [ $# -gt 0 ]; do
	case $1 in
	--prefix) [ $# -gt 1 ] || fail "--prefix needs a folder"; prefix=$2; shift ;;
	--service) service=yes ;;
	-h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit ;;
	-*) fail "there is no option $1" ;;
	*) archive=$1 ;;
	esac
	shift
done

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -n "$archive" ]; then
	[ -f "$archive" ] || fail "$archive: there is no such file"
	sums=$(dirname "$archive")/SHA256SUMS
	[ -f "$sums" ] || fail "$sums is missing: the archive cannot be checked"
	if command -v sha256sum >/dev/null; then sum=$(sha256sum <"$archive"); else sum=$(shasum -a 256 <"$archive"); fi
	grep -qx "${sum%% *}  $(basename "$archive")" "$sums" || fail "$archive is damaged: its checksum is not that of $sums"
	tar -C "$work" --strip-components 1 -xzf "$archive"
else
	command -v go >/dev/null || fail "Go is needed to build strobe (https://go.dev/dl), or give the archive of a release"
	"$here/packaging/build" "$work/strobe"
	cp "$here/packaging/strobe.service" "$work/"
fi

"$work/strobe" --version >/dev/null || fail "the program does not run on this machine"
mkdir -p "$prefix/bin"
cp "$work/strobe" "$prefix/bin/.strobe.new"
mv "$prefix/bin/.strobe.new" "$prefix/bin/strobe" # a server that runs keeps the old file
echo "installed $prefix/bin/strobe: $("$prefix/bin/strobe" --version)"
case :$PATH: in
*:"$prefix/bin":*) ;;
*) echo "add $prefix/bin to your PATH" ;;
esac

if [ "$service" = yes ]; then
	if [ "$(id -u)" = 0 ]; then
		units=/etc/systemd/system
		sed "s|/usr/local/bin|$prefix/bin|" "$work/strobe.service" >"$units/strobe.service"
		echo "start it with: systemctl enable --now strobe"
	else # a user's services have the user's folders and rights
		units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
		mkdir -p "$units"
		sed -e "s|/usr/local/bin|$prefix/bin|" -e '/^# The machine/,/^# All/d' \
			-e 's/multi-user.target/default.target/' "$work/strobe.service" >"$units/strobe.service"
		echo "start it with: systemctl --user enable --now strobe"
	fi
fi
