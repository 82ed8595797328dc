package config

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

// Loaded is a configuration with notes on it.
type Loaded struct {
	Config *v1alpha1.AgentConfig
	// Notes name settings of an NVIDIA device plugin file that have no effect or another effect here, with file, line,
	// field and the reason.
	Notes []string
}

// Load reads the file and fills in the defaults; an empty path means all defaults. Override, which may be nil, is
// called before the defaults are set, so that command line flags override the file. The error is an *Error for anything
// that is wrong inside the file.
func Load(path string, override func(*v1alpha1.AgentConfig)) (*v1alpha1.AgentConfig, error) {
	var data []byte
	if path != "" {
		var err error
		if data, err = hostconfig.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read config: %w (the path comes from --config)", err)
		}
	}
	return Parse(path, data, override)
}

// Parse is Load on the bytes of a file named file.
func Parse(file string, data []byte, override func(*v1alpha1.AgentConfig)) (*v1alpha1.AgentConfig, error) {
	loaded, err := Read(file, data, override)
	return loaded.Config, err
}

// Read is Parse with the notes. The file is Berth's AgentConfig, or NVIDIA's when it has a version, or only keys of
// NVIDIA's file.
func Read(file string, data []byte, override func(*v1alpha1.AgentConfig)) (Loaded, error) {
	d := newDecoder(file)
	document := d.parse(data)
	config := &v1alpha1.AgentConfig{}
	if hasKey(document, "version") || nvidiaShaped(document) {
		config = d.readNVIDIA(document)
	} else {
		d.decode(document, config, hints())
	}
	if err := d.err(); err != nil {
		return Loaded{}, err
	}
	d.checkType(config)
	if override != nil {
		override(config)
	}
	setDefaults(config)
	d.check(config)
	if err := d.err(); err != nil {
		return Loaded{}, err
	}
	return Loaded{Config: config, Notes: d.notes}, nil
}

// Empty reports whether a text has nothing but blanks and comments: neither a setting, nor what says that there are none on purpose, such
// as a kind alone.
func Empty(data []byte) bool {
	d := newDecoder("")
	document := d.parse(data)
	return d.err() == nil && (document == nil || document.Kind == yaml.ScalarNode && document.ShortTag() == "!!null")
}

// hints returns what to write instead of keys that exist only in the files of other programs.
func hints() map[string]string {
	const nvidia = "if this is a file of NVIDIA's device plugin, begin it with version: v1"
	return map[string]string{
		"exclude":     "write a rule for each: gpus: [{select: {index: [0]}, exclude: true}]; uuid and model select too",
		"flags":       nvidia,
		"resources":   nvidia,
		"sharing":     nvidia + "; in Berth's file, sharing belongs to a rule of gpus or migDevices",
		"mig-configs": "a file of mig-parted belongs in the ConfigMap that migConfigMap names, or its layouts in migLayouts",
	}
}
