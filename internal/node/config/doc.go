// Package config reads the agent's configuration file: it refuses unknown keys, fills in the defaults, and reports all
// errors at once with file, line, field and fix. The file is Berth's own (kind AgentConfig) or that of NVIDIA's device
// plugin (it has a version), and is converted to the same configuration; the layouts of NVIDIA's mig-parted are read
// too.
//
// It guarantees that a returned configuration is complete (all defaults are set) and consistent (no combination that
// the agent cannot support, as far as this can be checked without the hardware), and that writing and reading it gives
// the same configuration. It reads one file and has no other effect. It must not import any other package than
// spelling, mig (whose layouts it returns), offer (whose limits it applies), health (which defines the causes and
// classes that healthClasses names) and the public types of api/v1alpha1.
//
// # NVIDIA's file
//
// A file of version v1 means what NVIDIA documents, and resources, rename and devices have their documented effect,
// although NVIDIA's plugin parses and then ignores them. Its defaults are kept: migStrategy none;
// failRequestsGreaterThanOne false for timeSlicing and true for mps; nvidia.com/ before a name that has no domain.
// Intended differences:
//
//   - resources, rename and devices are followed, with a note for each: NVIDIA's plugin reads and ignores them, so a
//     node that is migrated may get other resource names.
//   - A missing version means v1, with a note, in a file that has only NVIDIA's keys. YAML anchors, aliases and merge
//     keys are read.
//   - An unknown key is an error, and so is a key that is spelled in other case.
//   - replicas: 1 is allowed. timeSlicing beside mps is refused; NVIDIA's plugin uses mps.
//   - Without deviceListStrategy, Berth's cdi-cri is used, which needs no special container runtime, and not envvar.
//     cdi-annotations beside cdi-cri, and passDeviceSpecs with CDI, have no effect, with a note.
//   - Without mpsRoot, MPS uses Berth's own directory.
//   - A GPU that no pattern of resources.gpus matches is nvidia.com/gpu; NVIDIA's plugin ends with an error. A number
//     of devices counts devices that no earlier entry selected, and cannot span several patterns. An entry that can
//     never have an effect is an error: a name that no device has, a list of GPUs for MIG devices. If only migStrategy
//     disables it, it is a note, because one file is often used for different nodes.
//   - containerDriverRoot is the driver's root as mounted into the container. Berth looks for it below the host's root,
//     so hostRoot becomes the path without nvidiaDriverRoot at its end; a path that does not end in it has no effect,
//     with a note. /driver-root, NVIDIA's default, is the mount point of NVIDIA's image and is ignored.
//   - Labels go to a NodeFeature only with useNodeFeatureAPI: true, and otherwise to the directory of gfd.outputFile,
//     in a file with Berth's own name, with a note. With neither they go to the Node, without Node Feature Discovery.
//   - failOnInitError and nvidiaCTKPath, and oneshot, sleepInterval and machineTypeFile of gfd, are read and have no
//     effect: the agent always waits for a driver, installs its own hook, writes a label when it changes and reads the
//     machine type from the kernel. deviceDiscoveryStrategy may be auto or nvml, nothing else is supported.
package config

//go:generate go run ./internal/schemagen
