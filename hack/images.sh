#!/usr/bin/env bash
# The image of each program: bin/images/NAME (OCI layout), NAME.tar, NAME.cdx.json. TAG is their tag, by default dev, which the
# chart in this tree names. Prints each image with its digest.
source "$(dirname "$0")/lib.sh"
hack/build.sh
hack/build.sh scheduler
hack/build.sh images --tag "${TAG:-dev}"
