// Package policies tests the ValidatingAdmissionPolicies of the chart with the API server's own admission plugin, on tables of requests.
//
// Real are: the plugin with its matching and its CEL, the API server's decoding and defaulting of pods, and the policies as the chart
// renders them. Nothing is started: all of it runs in the test's process. What the plugin is given is a request that authentication,
// authorization and the mutating plugins have passed.
package policies
