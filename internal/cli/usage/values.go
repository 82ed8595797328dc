package usage

import "github.com/spf13/pflag"

// valuesAnnotation is the annotation of a flag with its values.
const valuesAnnotation = "berth_values"

// SetValues says which values a flag can have. After one that ends with an equals sign, such as jsonpath=, the value goes on.
func SetValues(flag *pflag.Flag, words ...string) {
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[valuesAnnotation] = words
}

// Values returns the values that a flag can have, or nil if that was not said.
func Values(flag *pflag.Flag) []string { return flag.Annotations[valuesAnnotation] }
