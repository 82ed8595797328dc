package probe
import (
 _ "github.com/berth-gpu/berth/internal/kubelet"
 _ "github.com/berth-gpu/berth/internal/gpu"
 _ "github.com/berth-gpu/berth/api/v1alpha1"
 _ "github.com/berth-gpu/berth/internal/sim"
)
