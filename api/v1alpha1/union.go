package v1alpha1

import (
	"encoding/json"
	"fmt"
)

// StringOrList is a text or a list of texts; both read as a list.
type StringOrList []string

// UnmarshalJSON reads "a" and ["a", "b"].
func (s *StringOrList) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = StringOrList{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(data, &many); err != nil {
		return fmt.Errorf("want text or a list of texts, got %s", data)
	}
	*s = many
	return nil
}

// AllOrIndices is "all" or a list of indices of GPUs.
type AllOrIndices struct {
	All     bool  `json:"-"`
	Indices []int `json:"-"`
}

// UnmarshalJSON reads "all" and [0, 1].
func (a *AllOrIndices) UnmarshalJSON(data []byte) error {
	var word string
	if json.Unmarshal(data, &word) == nil && word == "all" {
		*a = AllOrIndices{All: true}
		return nil
	}
	var indices []int
	if err := json.Unmarshal(data, &indices); err != nil || indices == nil {
		return fmt.Errorf("want all or a list of indices such as [0, 1], got %s", data)
	}
	*a = AllOrIndices{Indices: indices}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (a AllOrIndices) MarshalJSON() ([]byte, error) {
	if a.All {
		return json.Marshal("all")
	}
	return json.Marshal(a.Indices)
}
