package nvidia

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The compute modes, as nvidia-smi -c names them.
const (
	ComputeModeDefault          = "DEFAULT"
	ComputeModeExclusiveProcess = "EXCLUSIVE_PROCESS"
	ComputeModeProhibited       = "PROHIBITED"
)

// The driver numbers GPU instances of a GPU from 0 to 14, and compute instances in one from 0 to 7
// (/proc/driver/nvidia-caps/mig-minors).
const (
	maxGPUInstances     = 15
	maxComputeInstances = 8
)

// Actions change GPUs. Each action initializes NVML and shuts it down again, so that a call that hangs blocks neither the
// adapter's scans nor other actions; the caller bounds it. The next scan shows the change. The caller must serialize the
// actions on one GPU.
type Actions struct {
	library nvml.Interface
	// proc is the root of procfs.
	proc string
	log  *slog.Logger
}

// NewActions returns the actions on the hardware of an adapter. It makes no calls.
func NewActions(deps Deps) *Actions {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Actions{library: deps.Library, proc: deps.Roots.Proc, log: deps.Log}
}

// action is one action on one GPU.
type action struct {
	*Actions
	// what describes the action in errors, such as "create MIG device 1g.5gb".
	what   string
	uuid   gpu.UUID
	device nvml.Device
}

// run initializes NVML, finds the GPU and runs the action. symbols are the functions that old libraries lack.
func (a *Actions) run(uuid gpu.UUID, what string, symbols []string, do func(*action) error) error {
	act := &action{Actions: a, what: what, uuid: uuid}
	if ret := a.library.Init(); ret != nvml.SUCCESS && ret != nvml.ERROR_ALREADY_INITIALIZED {
		return act.fail("nvmlInit", ret, "load the NVIDIA driver")
	}
	defer func() {
		if ret := a.library.Shutdown(); ret != nvml.SUCCESS {
			a.log.Debug("nvmlShutdown failed", "return", codeName(ret))
		}
	}()
	extensions := a.library.Extensions()
	for _, symbol := range symbols {
		if extensions != nil && extensions.LookupSymbol(symbol) != nil {
			return act.fail(symbol, nvml.ERROR_FUNCTION_NOT_FOUND, "this driver is too old for it; update the driver")
		}
	}
	var ret nvml.Return
	if act.device, ret = a.library.DeviceGetHandleByUUID(string(uuid)); ret != nvml.SUCCESS {
		return act.fail("nvmlDeviceGetHandleByUUID", ret, "the driver has no such GPU; it was removed, or it is lost")
	}
	return do(act)
}

// caller returns a caller for the GPU of the action.
func (a *action) caller() *caller {
	return &caller{gpu: a.uuid, at: func(gpu.UUID, string) {}, log: a.log}
}

// SetMIGMode turns MIG on or off. pendingReset is true where the change takes effect with the next reset of the GPU. The driver
// refuses it while MIG devices exist.
func (a *Actions) SetMIGMode(uuid gpu.UUID, on bool) (pendingReset bool, err error) {
	word, mode := "off", nvml.DEVICE_MIG_DISABLE
	if on {
		word, mode = "on", nvml.DEVICE_MIG_ENABLE
	}
	err = a.run(uuid, "turn MIG "+word, []string{"nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode"}, func(act *action) error {
		current, pending, ret := act.device.GetMigMode()
		if ret != nvml.SUCCESS {
			return act.fail("nvmlDeviceGetMigMode", ret, "only the A100, the A30 and data centre GPUs since Hopper can be partitioned")
		}
		if current == mode && pending == mode {
			return nil
		}
		activation, ret := act.device.SetMigMode(mode)
		if ret != nvml.SUCCESS {
			return act.fail("nvmlDeviceSetMigMode", ret, "destroy the MIG devices first, and stop what uses the GPU"+act.users(allInstances))
		}
		// The code of the activation differs between machines and drivers; the mode decides.
		current, pending, ret = act.device.GetMigMode()
		switch {
		case ret != nvml.SUCCESS:
			return act.fail("nvmlDeviceGetMigMode", ret, "")
		case current == mode:
			return nil
		case pending == mode:
			pendingReset = true
			return nil
		}
		return act.fail("nvmlDeviceSetMigMode (activation)", activation, "stop what uses the GPU"+act.users(allInstances))
	})
	return pendingReset, err
}

// CreateMIG creates a GPU instance of a profile ("1g.5gb+me") at a memory slice, with one compute instance of its whole size,
// and returns the number of the GPU instance. If the compute instance cannot be created, the GPU instance is destroyed.
func (a *Actions) CreateMIG(uuid gpu.UUID, profileName string, start int) (gi int, err error) {
	what := fmt.Sprintf("create MIG device %s at memory slice %d", profileName, start)
	symbols := []string{"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"}
	err = a.run(uuid, what, symbols, func(act *action) error {
		p, err := act.profile(profileName, start)
		if err != nil {
			return err
		}
		placement := nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)}
		instance, ret := act.device.CreateGpuInstanceWithPlacement(&p.info, &placement)
		if ret != nvml.SUCCESS {
			return act.fail("nvmlDeviceCreateGpuInstanceWithPlacement", ret, act.createAdvice(ret))
		}
		info, ret := instance.GetInfo()
		if ret != nvml.SUCCESS {
			return act.undo(instance, act.fail("nvmlGpuInstanceGetInfo", ret, ""))
		}
		if err := act.createCompute(instance, p.info.SliceCount); err != nil {
			return act.undo(instance, err)
		}
		gi = int(info.Id)
		return nil
	})
	return gi, err
}

// profile returns a profile of the GPU by name, if an instance of it can begin at the slice.
func (a *action) profile(name string, start int) (*profile, error) {
	memory, ret := a.device.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, a.fail("nvmlDeviceGetMemoryInfo", ret, "")
	}
	pci, ret := a.device.GetPciInfo()
	if ret != nvml.SUCCESS {
		return nil, a.fail("nvmlDeviceGetPciInfo", ret, "")
	}
	var names []string
	q := a.caller()
	for _, p := range readProfiles(q, a.device, pci.PciDeviceId, memory.Total) {
		switch {
		case p.Name != name:
			names = append(names, p.Name)
		case len(p.Starts) == 0:
			return nil, fmt.Errorf("%s of GPU %s: the driver does not report where such a device can be placed; turn MIG on first, and run the agent privileged", a.what, a.uuid)
		case !slices.Contains(p.Starts, start):
			return nil, fmt.Errorf("%s of GPU %s: such a device begins at one of %v", a.what, a.uuid, p.Starts)
		default:
			return &p, nil
		}
	}
	switch {
	case q.lost != nil:
		return nil, a.fail(q.lost.call, q.lost.ret, "reset the GPU or reboot the node")
	case q.broken != nil:
		return nil, fmt.Errorf("%s of GPU %s: %s", a.what, a.uuid, q.broken.Message)
	case len(names) == 0:
		return nil, fmt.Errorf("%s of GPU %s: the driver reports no MIG profiles for it; turn MIG on first", a.what, a.uuid)
	}
	return nil, fmt.Errorf("%s of GPU %s: it has no such profile; it has %s", a.what, a.uuid, strings.Join(names, ", "))
}

// createCompute creates the compute instance with all compute slices of a GPU instance.
func (a *action) createCompute(instance nvml.GpuInstance, slices uint32) error {
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := instance.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS || info.SliceCount != slices {
			continue
		}
		if _, ret := instance.CreateComputeInstance(&info); ret != nvml.SUCCESS {
			return a.fail("nvmlGpuInstanceCreateComputeInstance", ret, "")
		}
		return nil
	}
	return a.fail("nvmlGpuInstanceGetComputeInstanceProfileInfo", nvml.ERROR_NOT_FOUND,
		fmt.Sprintf("the driver has no compute instance of %d slices", slices))
}

// undo destroys a GPU instance that is incomplete.
func (a *action) undo(instance nvml.GpuInstance, cause error) error {
	if ret := instance.Destroy(); ret != nvml.SUCCESS {
		return fmt.Errorf("%w; the GPU instance without a compute instance could not be destroyed either: nvmlGpuInstanceDestroy returned %s", cause, codeName(ret))
	}
	return cause
}

// DestroyMIG destroys a GPU instance with its compute instances. It returns nil when the instance does not exist.
func (a *Actions) DestroyMIG(uuid gpu.UUID, gi int) error {
	what := fmt.Sprintf("destroy GPU instance %d", gi)
	return a.run(uuid, what, []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstanceById"}, func(act *action) error {
		instance, err := act.instance(gi)
		if err != nil || instance == nil {
			return err
		}
		for ci := range maxComputeInstances {
			compute, ret := instance.GetComputeInstanceById(ci)
			if ret == nvml.ERROR_NOT_FOUND {
				continue
			}
			if ret != nvml.SUCCESS {
				return act.fail("nvmlGpuInstanceGetComputeInstanceById", ret, "")
			}
			if ret := compute.Destroy(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
				return act.fail("nvmlComputeInstanceDestroy", ret, "stop what uses the MIG device"+act.users(gi))
			}
		}
		return act.destroyInstance(instance, gi)
	})
}

// RemoveEmptyMIG destroys a GPU instance that has no compute instance; the driver refuses when it has one (IN_USE). It returns
// nil when the instance does not exist.
func (a *Actions) RemoveEmptyMIG(uuid gpu.UUID, gi int) error {
	what := fmt.Sprintf("remove empty GPU instance %d", gi)
	return a.run(uuid, what, []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstanceById"}, func(act *action) error {
		instance, err := act.instance(gi)
		if err != nil || instance == nil {
			return err
		}
		return act.destroyInstance(instance, gi)
	})
}

// instance returns a GPU instance; nil when it does not exist.
func (a *action) instance(gi int) (nvml.GpuInstance, error) {
	current, _, ret := a.device.GetMigMode()
	if ret != nvml.SUCCESS {
		return nil, a.fail("nvmlDeviceGetMigMode", ret, "")
	}
	if current != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	instance, ret := a.device.GetGpuInstanceById(gi)
	switch ret {
	case nvml.SUCCESS:
		return instance, nil
	case nvml.ERROR_NOT_FOUND:
		return nil, nil
	}
	return nil, a.fail("nvmlDeviceGetGpuInstanceById", ret, "")
}

func (a *action) destroyInstance(instance nvml.GpuInstance, gi int) error {
	if ret := instance.Destroy(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
		return a.fail("nvmlGpuInstanceDestroy", ret, "stop what uses the MIG device"+a.users(gi))
	}
	return nil
}

// ComputeMode returns the compute mode of a GPU, one of the ComputeMode constants.
func (a *Actions) ComputeMode(uuid gpu.UUID) (string, error) {
	mode := ""
	err := a.run(uuid, "read the compute mode", nil, func(act *action) error {
		number, ret := act.device.GetComputeMode()
		if ret != nvml.SUCCESS {
			return act.fail("nvmlDeviceGetComputeMode", ret, "")
		}
		mode = computeModeWord(number)
		return nil
	})
	return mode, err
}

// SetComputeMode sets the compute mode of a GPU. It lasts until the next reboot or reset.
func (a *Actions) SetComputeMode(uuid gpu.UUID, mode string) error {
	words := []string{ComputeModeDefault, ComputeModeExclusiveProcess, ComputeModeProhibited}
	numbers := []nvml.ComputeMode{nvml.COMPUTEMODE_DEFAULT, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_PROHIBITED}
	i := slices.Index(words, mode)
	if i < 0 {
		return fmt.Errorf("set the compute mode of GPU %s: %q is not a compute mode; use %s", uuid, mode, strings.Join(words, ", "))
	}
	return a.run(uuid, "set the compute mode to "+mode, nil, func(act *action) error {
		if now, ret := act.device.GetComputeMode(); ret == nvml.SUCCESS && now == numbers[i] {
			return nil
		}
		if ret := act.device.SetComputeMode(numbers[i]); ret != nvml.SUCCESS {
			return act.fail("nvmlDeviceSetComputeMode", ret, "")
		}
		return nil
	})
}

func computeModeWord(mode nvml.ComputeMode) string {
	switch mode {
	case nvml.COMPUTEMODE_DEFAULT:
		return ComputeModeDefault
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return ComputeModeExclusiveProcess
	case nvml.COMPUTEMODE_PROHIBITED:
		return ComputeModeProhibited
	}
	return fmt.Sprintf("COMPUTE_MODE_%d", mode)
}
