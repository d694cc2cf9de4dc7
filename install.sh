#!/bin/sh
# Installs strobe from a release, and checks what it downloads. Go is not needed.
#
#   install.sh [--version VERSION] [--from ADDRESS] [--prefix DIR] [--variant NAME] [--service]
#   install.sh [--prefix DIR] [--service] ARCHIVE
#   install.sh [--prefix DIR] --build
#   install.sh [--prefix DIR] --uninstall
#
# VERSION is v1.2.3, or the newest without it; ADDRESS is where releases are, https://... or a folder. The variant small
# has no built-in model; static and static-small (Linux) know no GPUs and need no C library. ARCHIVE is a file that was
# downloaded already, beside its SHA256SUMS. --build compiles a clone of the repository, which needs Go; in a clone that
# is the default. Programs go to DIR/bin, manual and completions to DIR/share: /usr/local for root, ~/.local for others.
# --service also installs a unit for systemd, for the whole machine as root and for this user otherwise. --uninstall
# takes away what was installed; models and settings stay, and are named.
set -eu
fail() { echo "install.sh: $*" >&2; exit 1; }
value() { [ $# -gt 1 ] || fail "$1 needs a value"; }

# Where releases are; the release fills this in.
releases=

if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
service=no archive='' version='' variant='' build=no uninstall=no
while [ $# -gt 0 ]; do
	case $1 in
	--prefix) value "$@"; prefix=$2; shift ;;
	--version) value "$@"; version=$2; shift ;;
	--from) value "$@"; releases=$2; shift ;;
	--variant) value "$@"; variant=-$2; shift ;;
	--service) service=yes ;;
	--build) build=yes ;;
	--uninstall) uninstall=yes ;;
	-h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit ;;
	-*) fail "there is no option $1" ;;
	*) archive=$1 ;;
	esac
	shift
done
if [ "$(id -u)" = 0 ]; then
	units=/etc/systemd/system manager="systemctl"
else
	units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user manager="systemctl --user"
fi

if [ "$uninstall" = yes ]; then
	if [ -f "$units/strobe.service" ]; then
		$manager disable --now strobe 2>/dev/null || true
		rm -f "$units/strobe.service"
	fi
	rm -f "$prefix/bin/strobe" "$prefix/share/man/man1/strobe.1" "$prefix/share/bash-completion/completions/strobe" \
		"$prefix/share/zsh/site-functions/_strobe" "$prefix/share/fish/vendor_completions.d/strobe.fish"
	ours="bin share/man/man1 share/man share/bash-completion/completions share/bash-completion share/zsh/site-functions
		share/zsh share/fish/vendor_completions.d share/fish share"
	for dir in $ours; do
		case $prefix/$dir in
		/usr/bin | /usr/share | /usr/share/man | /usr/local/bin | /usr/local/share | /usr/local/share/man) ;; # the system's
		*) rmdir "$prefix/$dir" 2>/dev/null || true ;; # if it is empty now
		esac
	done
	echo "removed strobe from $prefix"
	for dir in "${XDG_CONFIG_HOME:-${HOME:-}/.config}/strobe" "${XDG_CACHE_HOME:-${HOME:-}/.cache}/strobe" \
		"${HF_HOME:-${HOME:-}/.cache/huggingface}" /etc/strobe /var/cache/strobe; do
		[ ! -e "$dir" ] || echo "left alone: $dir"
	done
	exit
fi

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# get ADDRESS FILE downloads, or copies from a folder.
get() {
	case $1 in
	http://* | https://*)
		if command -v curl >/dev/null; then
			curl -fsSL --proto '=https,http' -o "$2" "$1" || fail "$1 cannot be downloaded"
		elif command -v wget >/dev/null; then
			wget -qO "$2" "$1" || fail "$1 cannot be downloaded"
		else
			fail "curl or wget is needed to download"
		fi
		;;
	*) cp "$1" "$2" 2>/dev/null || fail "$1: there is no such file" ;;
	esac
}

if [ -z "$archive" ] && [ "$build" = no ] && [ -f "$here/go.mod" ] && [ -z "$releases" ]; then
	build=yes
fi
if [ "$build" = yes ]; then
	command -v go >/dev/null || fail "Go is needed to build strobe (https://go.dev/dl), or give the archive of a release"
	"$here/packaging/build" "$work/strobe"
	cp "$here/packaging/strobe.service" "$work/"
elif [ -z "$archive" ]; then
	[ -n "$releases" ] || fail "where are the releases? give --from ADDRESS, or an archive"
	case $(uname -s) in
	Linux) system=linux ;;
	Darwin) system=darwin ;;
	*) fail "there is no release for $(uname -s) that this script could install" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "there is no release for processors of type $(uname -m)" ;;
	esac
	if [ -z "$version" ]; then # the newest release has its files under a name of its own, too
		folder=${releases%/download}/latest/download
		get "$folder/SHA256SUMS" "$work/SHA256SUMS"
		version=$(sed -n "s/^[0-9a-f]*  strobe-\(v[0-9][^ ]*\)-$system-$arch\.tar\.gz\$/\1/p" "$work/SHA256SUMS")
		[ -n "$version" ] || fail "the newest release has nothing for $system-$arch"
	else
		folder=$releases/$version
		get "$folder/SHA256SUMS" "$work/SHA256SUMS"
	fi
	archive=$work/strobe-$version-$system-$arch$variant.tar.gz
	echo "downloading ${archive##*/}"
	get "$folder/${archive##*/}" "$archive"
fi

if [ -n "$archive" ]; then
	[ -f "$archive" ] || fail "$archive: there is no such file"
	sums=$(dirname "$archive")/SHA256SUMS
	[ -f "$sums" ] || fail "$sums is missing: the archive cannot be checked"
	if command -v sha256sum >/dev/null; then sum=$(sha256sum <"$archive"); else sum=$(shasum -a 256 <"$archive"); fi
	grep -qx "${sum%% *}  $(basename "$archive")" "$sums" || fail "$archive is damaged: its checksum is not that of $sums"
	tar -C "$work" --strip-components 1 -xzf "$archive"
fi

"$work/strobe" --version >/dev/null || fail "the program does not run on this machine"
mkdir -p "$prefix/bin"
cp "$work/strobe" "$prefix/bin/.strobe.new"
mv "$prefix/bin/.strobe.new" "$prefix/bin/strobe" # a server that runs keeps the old file
echo "installed $prefix/bin/strobe: $("$prefix/bin/strobe" --version)"
# put FILE COMMAND... has the program write its manual or a completion.
put() {
	file=$prefix/share/$1
	shift
	mkdir -p "${file%/*}"
	"$prefix/bin/strobe" "$@" >"$file"
}
put man/man1/strobe.1 man
put bash-completion/completions/strobe completion bash
put zsh/site-functions/_strobe completion zsh
put fish/vendor_completions.d/strobe.fish completion fish
case :$PATH: in
*:"$prefix/bin":*) ;;
*) echo "add $prefix/bin to your PATH" ;;
esac

if [ "$service" = yes ]; then
	mkdir -p "$units"
	if [ "$(id -u)" = 0 ]; then
		sed "s|/usr/local/bin|$prefix/bin|" "$work/strobe.service" >"$units/strobe.service"
	else # a user's services have the user's folders and rights
		sed -e "s|/usr/local/bin|$prefix/bin|" -e '/^# The machine/,/^# All/d' \
			-e 's/multi-user.target/default.target/' "$work/strobe.service" >"$units/strobe.service"
	fi
	echo "start it with: $manager enable --now strobe"
fi
