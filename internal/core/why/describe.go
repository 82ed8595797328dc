package why

import (
	"fmt"
	"strings"
)

// describe says what is in the way on a node: the worst thing in full, the others by their names.
func describe(v *verdict) string {
	text := v.obstacles[0].text()
	if len(v.obstacles) == 1 {
		return text
	}
	var others []string
	for i := range v.obstacles[1:] {
		others = append(others, v.obstacles[i+1].text())
	}
	return text + "; also: " + strings.Join(others, "; ")
}

// text says what is in the way, as a clause about a node.
func (o *Obstacle) text() string {
	switch o.Code {
	case InUse:
		text := fmt.Sprintf("%d of its %d %s are free, the pod requests %d", o.Have, o.All, o.Key, o.Want)
		if broken := o.broken(); broken != "" {
			text += " (" + broken + ")"
		}
		return text
	case Health:
		return fmt.Sprintf("%d of its %d %s can be allocated (%s), the pod requests %d", o.Have, o.All, o.Key, o.broken(), o.Want)
	case AgentDown:
		if o.Have > 0 {
			return fmt.Sprintf("it offers %d of its %d %s, the pod requests %d: its agent has just changed them, or does not run", o.Have, o.All, o.Key, o.Want)
		}
		return fmt.Sprintf("it offers no %s, because its agent does not run", o.Key)
	case Contended:
		return "the pod needs much memory bandwidth, and each free GPU has another such pod"
	case NoResource, NoOther:
		return "it has no " + o.Key
	case FewGPUs, LittleOther, LittleCPU, LittleRAM:
		return fmt.Sprintf("it has %s in all, the pod requests %s", o.amount(o.All), o.amount(o.Want))
	case Many:
		return fmt.Sprintf("it refuses requests for more than one %s, as its GPUs are shared, the pod requests %d", o.Key, o.Want)
	case WrongModel:
		return "its GPUs are of the model " + unknown(o.Text)
	case CPUInUse, MemoryInUse, OtherInUse:
		return fmt.Sprintf("%s are free of %s, the pod requests %s", o.amount(o.Have), o.amount(o.All), o.amount(o.Want))
	case PodLimit:
		return fmt.Sprintf("it has the %d pods that it accepts at most", o.All)
	}
	return o.blockText()
}

func unknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// blockText is the clause of a block.
func (o *Obstacle) blockText() string {
	more := ""
	if o.Text != "" {
		more = ": " + o.Text
	}
	switch o.Code {
	case Taint:
		return "the pod does not tolerate its taint " + o.Key
	case Cordoned:
		return "it is cordoned"
	case NotReady:
		return "it is not ready" + more
	case NotValidated:
		return "its GPUs are not validated yet" + more
	case Sick:
		return "it has unhealthy GPUs and does not accept pods" + more
	case Selector:
		return "it does not have " + o.Key + ", which the pod requires"
	}
	if o.Text != "" {
		return strings.TrimSuffix(lowerFirst(o.Text), ".")
	}
	return o.Key
}

// lowerFirst begins with a small letter, unless the first word is a name such as DeviceClass.
func lowerFirst(text string) string {
	word, _, _ := strings.Cut(text, " ")
	if len(text) > 1 && strings.ToLower(word[1:]) == word[1:] {
		return strings.ToLower(text[:1]) + text[1:]
	}
	return text
}
