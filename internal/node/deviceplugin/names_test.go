package deviceplugin

import (
	"strings"
	"testing"
	"time"
)

func TestSocketName(t *testing.T) {
	tests := map[string]struct {
		name socketName
		want string
	}{
		"a GPU":                {socketName{"gpu", "0abc", 1}, "berth-gpu-0abc.sock"},
		"another attempt":      {socketName{"gpu", "0abc", 37}, "berth-gpu-0abc.11.sock"},
		"dashes and dots":      {socketName{"mig-1g.5gb.shared", "0abc", 2}, "berth-mig-1g.5gb.shared-0abc.2.sock"},
		"another domain":       {socketName{"amd.com@gpu", "0", 1}, "berth-amd.com@gpu-0.sock"},
		"before the first try": {socketName{"gpu", "0abc", 0}, "berth-gpu-0abc.sock"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.name.String(); got != test.want {
				t.Fatalf("got %s, want %s", got, test.want)
			}
			test.name.attempt = max(test.name.attempt, 1)
			if back, ok := parseSocketName(test.want); !ok || back != test.name {
				t.Errorf("read back as %+v, %v", back, ok)
			}
		})
	}
	for _, foreign := range []string{"", "kubelet.sock", "nvidia-gpu.sock", "berth-gpu.sock", "berth--a.sock", "berth-gpu-.sock",
		"berth-gpu-A.sock", "berth-gpu-a.1.sock", "berth-gpu-a.02.sock", "berth-gpu-a.sock.tmp", "berth-gpu-a.-1.sock", ".berth-gpu-a.sock"} {
		if name, ok := parseSocketName(foreign); ok {
			t.Errorf("%q was read as %+v", foreign, name)
		}
	}
}

func FuzzParseSocketName(f *testing.F) {
	f.Add("berth-gpu-0abc.sock")
	f.Add("berth-mig-1g.5gb-0abc.zz.sock")
	f.Fuzz(func(t *testing.T, text string) {
		if name, ok := parseSocketName(text); ok && name.String() != text {
			t.Errorf("%q was read as %+v, which is written %q", text, name, name)
		}
	})
}

func TestResourcePart(t *testing.T) {
	const usual = "/var/lib/kubelet/device-plugins"
	long := "nvidia.com/" + strings.Repeat("x", 51) + "a"
	tests := map[string]struct {
		dir      string
		resource string
		want     string
	}{
		"a GPU":                     {usual, "nvidia.com/gpu", "gpu"},
		"the longest MIG":           {usual, "nvidia.com/mig-1g.10gb.me.all.shared", "mig-1g.10gb.me.all.shared"},
		"another domain":            {usual, "amd.com/gpu", "amd.com@gpu"},
		"as long as a name may be":  {usual, long, strings.Repeat("x", 36) + "~fc109fea"},
		"as long, but another name": {usual, long[:len(long)-1] + "b", strings.Repeat("x", 36) + "~fb109e57"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := resourcePart(test.dir, test.resource)
			if err != nil || got != test.want {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
			longest := test.dir + "/" + bindPrefix + socketName{got, strings.Repeat("z", instanceLength), 36*36*36*36 - 1}.String()
			if len(longest) > maxSocketPath {
				t.Errorf("%s is %d bytes long", longest, len(longest))
			}
		})
	}
	if _, err := resourcePart("/"+strings.Repeat("d", 70), "nvidia.com/gpu"); err == nil || !strings.Contains(err.Error(), "bytes too long") {
		t.Errorf("a directory that is too deep: %v", err)
	}
}

func TestNextInstance(t *testing.T) {
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	usual := nextInstance(now, nil)
	later := nextInstance(now.Add(time.Hour), nil)
	tests := map[string]struct {
		names []string
		above string
	}{
		"no sockets":               {nil, ""},
		"others, and an older one": {[]string{"kubelet.sock", socketName{"gpu", nextInstance(now.Add(-1), nil), 1}.String()}, ""},
		"the same moment":          {[]string{socketName{"gpu", usual, 4}.String()}, usual},
		"a clock that was set back": {[]string{
			socketName{"gpu", later, 1}.String(), socketName{"mig-1g.5gb", usual, 1}.String(),
		}, later},
		"one named by hand": {[]string{"berth-gpu-zzz.sock"}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := nextInstance(now, test.names)
			if !isInstance(got) || len(got) != instanceLength || got <= test.above || test.above == "" && got != usual {
				t.Errorf("got %s, want one after %q", got, test.above)
			}
		})
	}
	if !(usual < later) {
		t.Errorf("%s does not come before %s", usual, later)
	}
}

func TestSituation(t *testing.T) {
	var (
		kubelet, other = fileID{inode: 1}, fileID{inode: 2}
		socket         = fileID{inode: 3}
		settled        = situation{kubelet: kubelet, registered: kubelet, endpoint: socket, there: socket, open: 1, ever: true}
	)
	tests := map[string]struct {
		alter func(*situation)
		want  string
	}{
		"settled":                         {func(*situation) {}, ""},
		"the stream is yet to come":       {func(s *situation) { s.open, s.ever = 0, false }, ""},
		"at the start":                    {func(s *situation) { *s = situation{kubelet: kubelet} }, reasonFirst},
		"at the start, no kubelet":        {func(s *situation) { *s = situation{} }, ""},
		"no kubelet any more":             {func(s *situation) { s.kubelet, s.there, s.open = fileID{}, fileID{}, 0 }, ""},
		"another kubelet":                 {func(s *situation) { s.kubelet, s.there, s.open = other, fileID{}, 0 }, reasonRestart},
		"another kubelet, still a stream": {func(s *situation) { s.kubelet = other }, reasonRestart},
		"our socket is gone":              {func(s *situation) { s.there = fileID{} }, reasonSocket},
		"our socket is another's":         {func(s *situation) { s.there = other }, reasonSocket},
		"the stream was ended":            {func(s *situation) { s.open = 0 }, reasonStream},
		"the newer agent died":            {func(s *situation) { s.registerAgain = true }, reasonNewer},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled
			test.alter(&s)
			if got := s.reason(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
