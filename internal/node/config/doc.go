// Package config reads the agent's configuration file: strict, defaulted, and
// with an error that names file, line, field and fix for everything that is
// wrong, all at once. The file is Berth's own (kind AgentConfig) or that of NVIDIA's device
// plugin (it has a version), and becomes the same configuration; the layouts of NVIDIA's
// mig-parted are read too.
//
// It guarantees that a config which it returns is complete (every default
// filled in) and consistent (no combination that the agent could not honour, as far as it
// can be told without the hardware), and that written out it is read as the same again.
// It reads one file and touches nothing else; it must not import any room but
// spelling, mig (whose layouts it hands out), offer (whose bounds it applies), health (which knows the causes and classes that
// healthClasses names) and the public types of api/v1alpha1.
//
// # NVIDIA's file
//
// A file of version v1 means what NVIDIA documents, and resources, rename and devices mean
// what they say there, although NVIDIA's plugin parses and then ignores them. Its defaults
// are kept: migStrategy none; failRequestsGreaterThanOne false for timeSlicing and true for mps;
// nvidia.com/ before a name that has no domain. What differs, on purpose:
//
//   - resources, rename and devices are followed, with a note for each: NVIDIA's plugin reads and ignores them, so a
//     node that comes from there may get other resource names.
//   - A missing version means v1, with a note, in a file that has only keys of NVIDIA's. YAML anchors, aliases and merge
//     keys are read.
//   - An unknown key is an error, and so is a key that is spelled in other case.
//   - replicas: 1 is allowed. timeSlicing beside mps is refused; NVIDIA's plugin takes mps.
//   - Without deviceListStrategy, Berth's cdi-cri is used, which needs no special container
//     runtime, and not envvar. cdi-annotations beside cdi-cri, and passDeviceSpecs with CDI,
//     have no effect, with a note.
//   - Without mpsRoot, MPS uses Berth's own directory.
//   - A card that no pattern of resources.gpus matches is nvidia.com/gpu; NVIDIA's would stop.
//     A number of devices counts what no earlier entry took, and cannot span several patterns.
//     An entry that could not do anything is an error: a name that nothing has, a list of
//     cards for MIG devices. With a migStrategy that only switches it off, it is a note, since
//     one file is often used for unlike nodes.
//   - containerDriverRoot says where the agent sees the driver's root. Berth looks for it below the
//     host's root, so hostRoot becomes what is left of the path without nvidiaDriverRoot at its
//     end; a path that does not end so has no effect, with a note. /driver-root, NVIDIA's
//     default, is where NVIDIA's image mounts it and is taken for no answer.
//   - Labels go to a NodeFeature only with useNodeFeatureAPI: true, and else to the folder of
//     gfd.outputFile, as a file with Berth's own name, which is a note. With neither they go to the
//     Node, which does not take Node Feature Discovery.
//   - failOnInitError and nvidiaCTKPath, and oneshot, sleepInterval and machineTypeFile of gfd, are
//     read and have no effect: the agent waits for a driver in any case, brings its own hook, writes a
//     label when it changes and asks the kernel what the machine is. deviceDiscoveryStrategy may be
//     auto or nvml, nothing else is supported.
package config

//go:generate go run ./internal/schemagen
