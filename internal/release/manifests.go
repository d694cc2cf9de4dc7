package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// manifests writes what package managers read, with the checksums of the archives. Managers whose archives were not
// built get none.
func (r *release) manifests(sums map[string]string) error {
	of := func(os, arch string) string { return r.archive(target{os, arch, ""}) }
	data := map[string]any{
		"Version": strings.TrimPrefix(r.version, "v"), "Tag": r.version, "Summary": summary, "Description": description,
		"License": licenseID, "Homepage": homepage(r.module), "Base": r.downloads() + "/" + r.version,
		"Maintainer": maintainer,
		"Date":       r.date.Format("2006-01-02"), "Publisher": "Strobe",
	}
	functions := template.FuncMap{
		"archive": of,
		"folder": func(os, arch string) string {
			return strings.TrimSuffix(strings.TrimSuffix(of(os, arch), ".zip"), ".tar.gz")
		},
		"sum":   func(os, arch string) string { return sums[of(os, arch)] },
		"upper": strings.ToUpper,
		// Nix writes the same number in base64.
		"sri": func(os, arch string) (string, error) {
			b, err := hex.DecodeString(sums[of(os, arch)])
			return "sha256-" + base64.StdEncoding.EncodeToString(b), err
		},
	}
	for _, m := range manifestFiles {
		built := true
		for _, arch := range []string{"amd64", "arm64"} {
			built = built && sums[of(m.os, arch)] != ""
		}
		if !built {
			fmt.Printf("%s: not made, since not all archives for %s were built\n", m.name, m.os)
			continue
		}
		t, err := template.New(m.name).Funcs(functions).Delims("[[", "]]").Option("missingkey=error").Parse(m.text)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, data); err != nil {
			return err
		}
		path := filepath.Join(r.out, filepath.FromSlash(m.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// manifestFiles are the manifests, as templates with [[ ]]: most of them use braces themselves.
var manifestFiles = []struct{ name, os, text string }{
	{"homebrew/strobe.rb", "darwin", `cask "strobe" do
  arch arm: "arm64", intel: "amd64"

  version "[[.Version]]"
  sha256 arm:   "[[sum "darwin" "arm64"]]",
         intel: "[[sum "darwin" "amd64"]]"

  url "[[.Homepage]]/releases/download/v#{version}/strobe-v#{version}-darwin-#{arch}.tar.gz"
  name "Strobe"
  desc "[[.Summary]]"
  homepage "[[.Homepage]]"

  binary "strobe-v#{version}-darwin-#{arch}/strobe"
  manpage "strobe-v#{version}-darwin-#{arch}/man/strobe.1"
  bash_completion "strobe-v#{version}-darwin-#{arch}/completions/strobe.bash"
  fish_completion "strobe-v#{version}-darwin-#{arch}/completions/strobe.fish"
  zsh_completion "strobe-v#{version}-darwin-#{arch}/completions/_strobe"

  zap trash: "~/Library/Caches/strobe"
end
`},
	{"scoop/strobe.json", "windows", `{
    "version": "[[.Version]]",
    "description": "[[.Summary]]",
    "homepage": "[[.Homepage]]",
    "license": "[[.License]]",
    "architecture": {
        "64bit": {
            "url": "[[.Base]]/[[archive "windows" "amd64"]]",
            "hash": "[[sum "windows" "amd64"]]",
            "extract_dir": "[[folder "windows" "amd64"]]"
        },
        "arm64": {
            "url": "[[.Base]]/[[archive "windows" "arm64"]]",
            "hash": "[[sum "windows" "arm64"]]",
            "extract_dir": "[[folder "windows" "arm64"]]"
        }
    },
    "bin": "strobe.exe",
    "checkver": "github",
    "autoupdate": {
        "architecture": {
            "64bit": {
                "url": "[[.Homepage]]/releases/download/v$version/strobe-v$version-windows-amd64.zip",
                "extract_dir": "strobe-v$version-windows-amd64"
            },
            "arm64": {
                "url": "[[.Homepage]]/releases/download/v$version/strobe-v$version-windows-arm64.zip",
                "extract_dir": "strobe-v$version-windows-arm64"
            }
        },
        "hash": {
            "url": "$baseurl/SHA256SUMS"
        }
    }
}
`},
	{"winget/Strobe.Strobe.yaml", "windows", `# yaml-language-server: $schema=https://aka.ms/winget-manifest.version.1.6.0.schema.json
PackageIdentifier: Strobe.Strobe
PackageVersion: [[.Version]]
DefaultLocale: en-US
ManifestType: version
ManifestVersion: 1.6.0
`},
	{"winget/Strobe.Strobe.installer.yaml", "windows", `# yaml-language-server: $schema=https://aka.ms/winget-manifest.installer.1.6.0.schema.json
PackageIdentifier: Strobe.Strobe
PackageVersion: [[.Version]]
InstallerType: zip
NestedInstallerType: portable
Commands:
  - strobe
ReleaseDate: [[.Date]]
Installers:
  - Architecture: x64
    InstallerUrl: [[.Base]]/[[archive "windows" "amd64"]]
    InstallerSha256: [[sum "windows" "amd64" | upper]]
    NestedInstallerFiles:
      - RelativeFilePath: [[folder "windows" "amd64"]]\strobe.exe
        PortableCommandAlias: strobe
  - Architecture: arm64
    InstallerUrl: [[.Base]]/[[archive "windows" "arm64"]]
    InstallerSha256: [[sum "windows" "arm64" | upper]]
    NestedInstallerFiles:
      - RelativeFilePath: [[folder "windows" "arm64"]]\strobe.exe
        PortableCommandAlias: strobe
ManifestType: installer
ManifestVersion: 1.6.0
`},
	{"winget/Strobe.Strobe.locale.en-US.yaml", "windows", `# yaml-language-server: $schema=https://aka.ms/winget-manifest.defaultLocale.1.6.0.schema.json
PackageIdentifier: Strobe.Strobe
PackageVersion: [[.Version]]
PackageLocale: en-US
Publisher: [[.Publisher]]
PackageName: Strobe
PackageUrl: [[.Homepage]]
License: [[.License]]
ShortDescription: [[.Summary]]
Description: [[.Description]]
Moniker: strobe
ManifestType: defaultLocale
ManifestVersion: 1.6.0
`},
	{"aur/PKGBUILD", "linux", `# Maintainer: [[.Maintainer]]
pkgname=strobe-bin
pkgver=[[.Version]]
pkgrel=1
pkgdesc="[[.Summary]]"
arch=('x86_64' 'aarch64')
url="[[.Homepage]]"
license=('[[.License]]')
depends=('glibc')
provides=('strobe')
conflicts=('strobe')
options=('!strip')
source_x86_64=("[[.Base]]/[[archive "linux" "amd64"]]")
source_aarch64=("[[.Base]]/[[archive "linux" "arm64"]]")
sha256sums_x86_64=('[[sum "linux" "amd64"]]')
sha256sums_aarch64=('[[sum "linux" "arm64"]]')

package() {
  local arch=amd64
  [ "$CARCH" = aarch64 ] && arch=arm64
  cd "$srcdir/strobe-v$pkgver-linux-$arch"
  install -Dm755 strobe "$pkgdir/usr/bin/strobe"
  install -Dm644 man/strobe.1 "$pkgdir/usr/share/man/man1/strobe.1"
  install -Dm644 completions/strobe.bash "$pkgdir/usr/share/bash-completion/completions/strobe"
  install -Dm644 completions/_strobe "$pkgdir/usr/share/zsh/site-functions/_strobe"
  install -Dm644 completions/strobe.fish "$pkgdir/usr/share/fish/vendor_completions.d/strobe.fish"
  install -Dm644 LICENSE "$pkgdir/usr/share/licenses/strobe-bin/LICENSE"
  install -Dm644 LICENSES.txt "$pkgdir/usr/share/licenses/strobe-bin/LICENSES.txt"
  sed -i 's|/usr/local/bin/|/usr/bin/|' strobe.service
  install -Dm644 strobe.service "$pkgdir/usr/lib/systemd/system/strobe.service"
}
`},
	{"aur/.SRCINFO", "linux", `pkgbase = strobe-bin
	pkgdesc = [[.Summary]]
	pkgver = [[.Version]]
	pkgrel = 1
	url = [[.Homepage]]
	arch = x86_64
	arch = aarch64
	license = [[.License]]
	depends = glibc
	provides = strobe
	conflicts = strobe
	options = !strip
	source_x86_64 = [[.Base]]/[[archive "linux" "amd64"]]
	sha256sums_x86_64 = [[sum "linux" "amd64"]]
	source_aarch64 = [[.Base]]/[[archive "linux" "arm64"]]
	sha256sums_aarch64 = [[sum "linux" "arm64"]]

pkgname = strobe-bin
`},
	{"nix/strobe.nix", "linux", `{ lib, stdenv, fetchurl, autoPatchelfHook, installShellFiles }:

let
  sources = {
    x86_64-linux = {
      arch = "amd64";
      hash = "[[sri "linux" "amd64"]]";
    };
    aarch64-linux = {
      arch = "arm64";
      hash = "[[sri "linux" "arm64"]]";
    };
  };
  source = sources.${stdenv.hostPlatform.system};
in
stdenv.mkDerivation rec {
  pname = "strobe";
  version = "[[.Version]]";

  src = fetchurl {
    url = "[[.Homepage]]/releases/download/v${version}/strobe-v${version}-linux-${source.arch}.tar.gz";
    inherit (source) hash;
  };

  nativeBuildInputs = [ autoPatchelfHook installShellFiles ];
  dontStrip = true;

  installPhase = ''
    runHook preInstall
    install -Dm755 strobe $out/bin/strobe
    installManPage man/strobe.1
    installShellCompletion completions/strobe.bash completions/_strobe completions/strobe.fish
    runHook postInstall
  '';

  meta = {
    description = "[[.Summary]]";
    homepage = "[[.Homepage]]";
    license = lib.licenses.mit;
    mainProgram = "strobe";
    platforms = builtins.attrNames sources;
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
  };
}
`},
}
