// Package failpoint names the places between two steps at which berth may die or
// a step may fail. In a program that is built with the tag failpoints a file
// says what happens there; in every other build Hit is nothing at all, and its
// name is not in the program.
//
// A name is a constant, "layer.step.before" or "layer.step.after" as a rule;
// points.txt is the list of all, made from the code by this package's tests.
//
// The file, which File names, is read once, when the program starts. Each line
// arms one point of one program:
//
//	berthd journal.append.before = 3*off->kill
//
// What stands right of the sign are terms, joined by "->" and taken in turn, as
// in FreeBSD's fail(9). A term is an action, with "N*" in front when it holds
// for the next N hits; one without holds for ever. Actions:
//
//	off            nothing
//	error(NAME)    the step fails with that errno, EIO when no name is given
//	delay(TIME)    the step waits, TIME as in time.ParseDuration
//	kill           the process ends at once, as with kill -9
//	panic          the step panics
//
// Points that are hit are appended, once each, to File + ".hits".
package failpoint
