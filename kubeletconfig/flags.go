package kubeletconfig

import (
	"errors"
	"flag"
	"strings"
)

// Flags are the flags of a kubelet that set fields of its configuration, of one command line.
type Flags struct{ given []setFlag }

type setFlag struct {
	field Field
	value string
}

// AddFlags adds the flags of all fields to fs, except those that fs has already. Their usage is
// Field.Note. Values are checked by Apply.
func AddFlags(fs *flag.FlagSet) *Flags {
	f := &Flags{}
	types := Default()
	for _, field := range Fields() {
		if field.Flag != "" && fs.Lookup(field.Flag) == nil {
			fs.Var(&flagValue{flags: f, field: field, isBool: isBool(valueAt(&types.kubelet, field.Path).Type())}, field.Flag, field.Note)
		}
	}
	return f
}

// Apply sets the fields of the flags that were given, over what the files of c say. A flag of a list
// that was given several times has all the values. The error has everything that is wrong.
func (f *Flags) Apply(c *Config) error {
	values, order := map[string][]string{}, []Field{}
	for _, s := range f.given {
		if values[s.field.Flag] == nil {
			order = append(order, s.field)
		}
		values[s.field.Flag] = append(values[s.field.Flag], s.value)
	}
	var errs []error
	for _, field := range order {
		all := values[field.Flag]
		value := all[len(all)-1]
		switch {
		case field.Path == reservedMemoryPath:
			value = strings.Join(all, nodeSeparator)
		case isList(valueAt(&c.kubelet, field.Path).Type()):
			value = strings.Join(all, ",")
		}
		errs = append(errs, c.Set(field.Flag, value))
	}
	return errors.Join(errs...)
}

// flagValue remembers what a flag was given.
type flagValue struct {
	flags  *Flags
	field  Field
	isBool bool
	last   string
}

// String implements flag.Value. It is the default, for the usage, until Set was called.
func (v *flagValue) String() string {
	if v.last == "" {
		return v.field.Default
	}
	return v.last
}

// Set implements flag.Value.
func (v *flagValue) Set(s string) error {
	v.last = s
	v.flags.given = append(v.flags.given, setFlag{v.field, s})
	return nil
}

// IsBoolFlag tells package flag whether a value must follow.
func (v *flagValue) IsBoolFlag() bool { return v.isBool }
