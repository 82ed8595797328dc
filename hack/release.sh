#!/usr/bin/env bash
# What is published of a version, into DIST (by default dist/): the command line, the images with their bills of materials and their
# digests, the chart, install.yaml (the same without Helm), the pages of the manual, what krew installs "kubectl berth" from if the version is a semantic one, and the checksums of all of these. The same commit gives the same bytes. The version is the Git tag; REGISTRY is in
# the images' names, DOWNLOADS is the address below which krew finds the archive.
source "$(dirname "$0")/lib.sh"
DIST=${DIST:-$PWD/dist}
changed=$(git status --porcelain) || fail "not a Git tree: a release names the commit that it is made of"
[ -z "$changed" ] || fail "the tree differs from the commit that the release would name: commit or stash first:
$changed"
version=$(version)
platform=linux-$(go env GOARCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "releasing $version for $platform"
hack/build.sh
hack/build.sh scheduler
hack/build.sh images --tag "$version" --registry "${REGISTRY:-berth.dev}" | awk '{ print $1 }' >"$work/images.txt"
cp "$BIN/berth" "$work/berth-$version-$platform"
for tarball in "$BIN"/images/*.tar; do
	name=$(basename "$tarball" .tar)
	cp "$tarball" "$work/$name-image-$version-$platform.tar"
	cp "$BIN/images/$name.cdx.json" "$work/$name-image-$version-$platform.cdx.json"
done
hack/build.sh chart "$work/chart" "$version" "${REGISTRY:-berth.dev}"
mv "$work"/chart/* "$work"
rmdir "$work/chart"
# krew takes only semantic versions.
case $version in v[0-9]*.[0-9]*.[0-9]*)
	go run ./hack/krew -version "$version" -base "${DOWNLOADS:-https://github.com/berth-gpu/berth/releases/download}/$version" -out "$work" "$platform=$BIN/berth" >/dev/null
	;;
esac
go run ./hack/clidocs -man "$work/man/man1" -version "$version"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --use-compress-program='gzip -n' -C "$work/man" -cf "$work/berth-$version-man.tar.gz" man1
rm -r "$work/man"
(cd "$work" && sha256sum -- * >SHA256SUMS)
mkdir -p "$DIST"
rm -rf "${DIST:?}/$version"
mv "$work" "$DIST/$version"
chmod 755 "$DIST/$version"
say "wrote $DIST/$version"
cat "$DIST/$version/SHA256SUMS"
