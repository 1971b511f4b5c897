package rpc

var fieldDocs = map[string]string{}
