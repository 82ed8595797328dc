#!/usr/bin/env bash
# Fails when a generated file is not what its generator writes: runs hack/generate.sh in a copy of the tree and compares.
source "$(dirname "$0")/lib.sh"
need_go
say "generated files"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$copy"
"$copy/hack/generate.sh"
stale=()
while IFS= read -r -d '' file; do
	cmp --silent "$file" "$copy/$file" || stale+=("$file")
done < <(cd "$copy" && find . -type f -print0 | sort --zero-terminated)
[ ${#stale[@]} = 0 ] || fail "stale or not committed: ${stale[*]} (run make generate)"
