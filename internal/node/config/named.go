package config

import (
	"fmt"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// NamedLayouts are all layouts that have a name on a node.
type NamedLayouts struct {
	ByName map[string]mig.Layout
	// Unread is the ConfigMap of layouts when no valid content of it has been read; empty when it has, or there is none.
	Unread string
}

// Find returns a layout by its name.
func (l NamedLayouts) Find(name string) (mig.Layout, error) {
	if l.Unread != "" {
		// The hardware may have a different layout of the same name.
		return mig.Layout{}, fmt.Errorf("layout %s is not known: no valid content of ConfigMap %s has been read yet", name, l.Unread)
	}
	return mig.FindLayout(l.ByName, name)
}

// ByRule returns what a rule of the configuration wants of a GPU, and where that is written; ok is false when its layout does not name
// the GPU. source is the place of the rule.
func (l NamedLayouts) ByRule(device mig.GPU, rule *v1alpha1.MIGSettings, source string) (wanted mig.Wanted, from string, ok bool, err error) {
	if rule.Layout == "" {
		return mig.Wanted{Enabled: true, Devices: rule.Devices}, source, true, nil
	}
	layout, err := l.Find(rule.Layout)
	if err != nil {
		return mig.Wanted{}, source, false, fmt.Errorf("%s: %w", source, err)
	}
	wanted, ok = layout.Wanted(device)
	return wanted, "layout " + rule.Layout + " of " + source, ok, nil
}
