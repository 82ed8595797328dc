// Package prepared reads the kubelet's record of prepared claims, the file dra_manager_state in the kubelet's root.
//
// It guarantees that a file which cannot be read and can have devices of the driver is an error and never a part of the claims: one that
// is cut off, and one that is damaged, of another version or has duplicate claims, and names the driver. Without the driver's name no such
// file prevents the start of the agent. The claims are in a fixed order. It is a reader of bytes: it must not import the ledger, a client
// of the API server, or Kubernetes' checkpoint manager, which brings k8s.io/kubernetes.
//
// The form (k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/dra/state/checkpoint.go and state.go): an object with Data, a JSON text, and
// Checksum, its CRC-32 (IEEE). The text has apiVersion, kind and ClaimInfoStateList. A claim is listed before it is prepared; its
// DriverState then has no Devices.
package prepared

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berth-gpu/berth/internal/node/dra"
)

// FileName is the name of the file in the kubelet's root.
const FileName = "dra_manager_state"

// maxBytes is more than the claims of a node need: each has at most 32 devices.
const maxBytes = 64 << 20

const apiVersion = "checkpoint.dra.kubelet.k8s.io/v1"

type envelope struct {
	// Data is nil in the form of older kubelets, which had the claims as "entries".
	Data     *string
	Checksum uint32
}

type record struct {
	APIVersion         string `json:"apiVersion"`
	ClaimInfoStateList []claimInfo
}

type claimInfo struct {
	ClaimUID  string
	ClaimName string
	Namespace string
	// PodUIDs is a set: its keys are the UIDs.
	PodUIDs     map[string]struct{}
	DriverState map[string]struct {
		Devices []struct {
			PoolName     string
			DeviceName   string
			RequestNames []string
			CDIDeviceIDs []string
		}
	}
}

// Read returns the claims that the kubelet lists, as parseState does. kubeletDir is the kubelet's root on the host, and
// hostRoot the host's root directory as this process sees it; links are followed within it. Without the file the result is nil: the
// kubelet makes it at its first start. It is an error when this process sees the kubelet's directory itself, as a volume, but not below
// hostRoot, because then the file may be there.
func Read(hostRoot, kubeletDir, driver string) ([]dra.Listed, error) {
	path, err := securejoin.SecureJoin(hostRoot, filepath.Join(kubeletDir, FileName))
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's claims: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, visible(hostRoot, kubeletDir)
	case err != nil:
		return nil, fmt.Errorf("read the kubelet's claims: %w", err)
	case info.Size() > maxBytes:
		return nil, fmt.Errorf("read the kubelet's claims: %s is larger than %d bytes", path, maxBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's claims: %w", err)
	}
	claims, err := parseState(data, driver)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's claims in %s: %w", path, err)
	}
	return claims, nil
}

// visible returns an error when a kubelet has its directory and the host's root does not show it.
func visible(hostRoot, kubeletDir string) error {
	below, err := securejoin.SecureJoin(hostRoot, kubeletDir)
	if err == nil {
		_, err = os.Stat(below)
	}
	if err == nil {
		return nil
	}
	if _, missing := os.Stat(kubeletDir); errors.Is(missing, fs.ErrNotExist) {
		return nil // There is no kubelet yet.
	}
	return fmt.Errorf("read the kubelet's claims: the kubelet's directory is not below the host's root %s, which has to be mounted with it (mountPropagation HostToContainer): %w", hostRoot, err)
}

// parseState returns all claims in the content of the file, by UID. Devices are those of the driver; a claim that it has not prepared has
// none. The result is nil, without an error, for a complete JSON document that cannot be read and does not name the driver: whatever its
// form is, no claim in it has a device of the driver. A kubelet of another version, or for other drivers, may have written it. One that
// is cut off may have lost the driver's name.
func parseState(data []byte, driver string) ([]dra.Listed, error) {
	return ParseDevices(data, driver, func(name, _ string) bool { return name == driver })
}

// ParseDevices is parseState for the devices that of returns true for, by their driver and their name; mark takes the place of the driver's
// name: a file with such a device has it.
func ParseDevices(data []byte, mark string, of func(driver, device string) bool) ([]dra.Listed, error) {
	claims, err := parse(data, of)
	if err != nil && json.Valid(data) && !bytes.Contains(data, []byte(mark)) {
		return nil, nil
	}
	return claims, err
}

func parse(data []byte, of func(driver, device string) bool) ([]dra.Listed, error) {
	var outer envelope
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, fmt.Errorf("decode the envelope: %w", err)
	}
	if outer.Data == nil {
		return nil, fmt.Errorf("the file has no Data, and this agent reads %q: a kubelet of another version wrote it; "+
			"upgrade the kubelet, or drain the node and delete the file", apiVersion)
	}
	text := []byte(*outer.Data)
	if sum := crc32.ChecksumIEEE(text); sum != outer.Checksum {
		return nil, fmt.Errorf("the checksum is %d, and not %d as the content requires: the file is damaged", outer.Checksum, sum)
	}
	var inner record
	if err := json.Unmarshal(text, &inner); err != nil {
		return nil, fmt.Errorf("decode the claims: %w", err)
	}
	if inner.APIVersion != apiVersion {
		return nil, fmt.Errorf("the version is %q, and this agent reads %q", inner.APIVersion, apiVersion)
	}
	claims := make([]dra.Listed, 0, len(inner.ClaimInfoStateList))
	for i := range inner.ClaimInfoStateList {
		one := &inner.ClaimInfoStateList[i]
		if one.ClaimUID == "" {
			return nil, fmt.Errorf("claim %s/%s has no UID", one.Namespace, one.ClaimName)
		}
		claims = append(claims, one.listed(of))
	}
	slices.SortFunc(claims, func(a, b dra.Listed) int { return cmp.Compare(a.UID, b.UID) })
	for i := 1; i < len(claims); i++ {
		if claims[i].UID == claims[i-1].UID {
			return nil, fmt.Errorf("claim %s/%s and claim %s/%s have the same UID", claims[i-1].Namespace, claims[i-1].Name, claims[i].Namespace, claims[i].Name)
		}
	}
	return claims, nil
}

func (c *claimInfo) listed(of func(driver, device string) bool) dra.Listed {
	claim := dra.Listed{UID: c.ClaimUID, Namespace: c.Namespace, Name: c.ClaimName}
	for uid := range c.PodUIDs {
		claim.PodUIDs = append(claim.PodUIDs, uid)
	}
	slices.Sort(claim.PodUIDs)
	for _, name := range slices.Sorted(maps.Keys(c.DriverState)) {
		for _, device := range c.DriverState[name].Devices {
			if of(name, device.DeviceName) {
				claim.Devices = append(claim.Devices, dra.ListedDevice{Pool: device.PoolName, Name: device.DeviceName, Requests: device.RequestNames, CDINames: device.CDIDeviceIDs})
			}
		}
	}
	return claim
}
