package picture

// Config returns the width and height of the image that Decode would return, without decoding it, or says why Decode
// would refuse the file.
func (l Like) Config(data []byte, lim Limits) (width, height int, err error) {
	f, c, err := check(data, lim)
	if err != nil {
		return 0, 0, err
	}
	if l == Reference && orientation(f, data) >= 5 { // 5 to 8 lie on their side
		return c.Height, c.Width, nil
	}
	return c.Width, c.Height, nil
}
