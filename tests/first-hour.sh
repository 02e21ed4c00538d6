#!/usr/bin/env bash
# The README's first program as a stranger makes it, with its commands and its code, in an empty directory:
#
#     tests/first-hour.sh DIRECTORY
#
# Leaves the package in DIRECTORY/shop, built, and says how long that took. The program is not run.
set -euo pipefail
repository="$(cd "$(dirname "$0")/.." && pwd)"
directory="$1"

block() { # fence, heading: the first such block behind the heading
    awk -v fence="\`\`\`$1" -v heading="$2" '
        index($0, heading) == 1 { found = 1 }
        inside && $0 == "```" { exit }
        inside { print }
        found && $0 == fence { inside = 1 }
    ' "$repository/README.md"
}

seconds() {
    local start=$SECONDS
    "$@" >&2
    printf '%s' $((SECONDS - start))
}

mkdir -p "$directory"
cd "$directory"
[ -z "$(ls)" ] || { echo "$directory is not empty" >&2; exit 2; }
ln -s "$repository" idem
bash -euo pipefail -c "$(block sh '## A first program')" >&2
cd shop
block rust '# idem' > src/main.rs

cold=$(seconds cargo build)
touch src/main.rs
warm=$(seconds cargo build)
program="${CARGO_TARGET_DIR:-target}/debug/shop"
printf '{"cold_seconds":%s,"warm_seconds":%s,"debug_bytes":%s}\n' "$cold" "$warm" "$(($(wc -c < "$program")))"
