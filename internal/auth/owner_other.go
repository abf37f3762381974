//go:build !unix

package auth

import "os"

func openFile(path string) (*os.File, error) { return os.Open(path) }

// checkOwner leaves the question to the system's access control lists.
func checkOwner(os.FileInfo) error { return nil }
