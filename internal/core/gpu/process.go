package gpu

// Process is a process of the host that has a GPU open, or that the driver lists as using it.
type Process struct {
	PID int
	// Program is the name of the process (/proc/PID/comm); empty when it is not known.
	Program string
	// Parent is the process that started it; 0 when it is not known.
	Parent int
}
