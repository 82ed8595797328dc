package class

// DefaultProfiles returns the MIG profiles of the GPUs that can be partitioned, by compute slices, memory and attribute. Their classes
// are in the manifests, so that a new node needs no new class.
func DefaultProfiles() []string {
	return []string{
		"1g.5gb", "1g.5gb+me", "1g.6gb", "1g.6gb+me", "1g.10gb", "1g.10gb+me", "1g.12gb", "1g.12gb+me", "1g.16gb",
		"1g.16gb+gfx", "1g.16gb+me.all", "1g.16gb-me", "1g.18gb", "1g.18gb+me", "1g.20gb", "1g.23gb", "1g.23gb+me",
		"1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all", "1g.24gb-me", "1g.34gb", "1g.34gb+me", "1g.35gb",
		"1g.35gb+me", "1g.36gb", "1g.45gb", "1g.47gb", "1g.67gb", "1g.70gb",
		"2g.10gb", "2g.12gb", "2g.12gb+me", "2g.20gb", "2g.24gb", "2g.32gb", "2g.32gb+gfx", "2g.35gb", "2g.36gb",
		"2g.45gb", "2g.47gb", "2g.48gb", "2g.48gb+gfx", "2g.48gb+me.all", "2g.48gb-me", "2g.67gb", "2g.70gb",
		"3g.20gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb", "3g.90gb", "3g.93gb", "3g.95gb",
		"3g.135gb", "3g.139gb",
		"4g.20gb", "4g.24gb", "4g.40gb", "4g.47gb", "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.93gb",
		"4g.95gb", "4g.96gb", "4g.96gb+gfx", "4g.135gb", "4g.139gb",
		"7g.40gb", "7g.80gb", "7g.94gb", "7g.96gb", "7g.141gb", "7g.144gb", "7g.180gb", "7g.186gb", "7g.189gb",
		"7g.269gb", "7g.278gb",
	}
}
