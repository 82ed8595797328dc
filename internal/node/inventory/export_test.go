package inventory

// ReplaceWrite puts another function in place of the one that writes the file of Deps.Keep.
func (i *Inventory) ReplaceWrite(write func(path string, blob []byte) error) { i.write = write }
