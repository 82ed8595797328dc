package why

// propose sets the changes with which the gang fits.
func (g *gangWorld) propose(answer *Answer, r *asked) {
}
