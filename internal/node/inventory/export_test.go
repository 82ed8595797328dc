package inventory

// ReplaceWrite replaces the function that writes the file of Deps.Keep.
func (i *Inventory) ReplaceWrite(write func(path string, blob []byte) error) { i.write = write }
