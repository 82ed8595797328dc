package signal

import "testing"

// TestRounds: the end of a round that began before the call does not count.
func TestRounds(t *testing.T) {
	r := NewRounds()
	if n := count(r.Asked()); n != 0 {
		t.Fatalf("new Rounds were asked %d times", n)
	}
	end := r.Begin()
	during := r.Ask()
	changed := r.Subscribe()
	defer changed.Close()
	<-changed.C()
	end()
	if during() || count(changed.C()) != 1 || count(r.Asked()) != 1 {
		t.Error("after the round that had begun before")
	}
	between := r.Ask()
	end = r.Begin()
	if during() || between() {
		t.Error("while the next round runs")
	}
	end()
	if !during() || !between() || r.Ask()() {
		t.Error("after the next round")
	}
}
