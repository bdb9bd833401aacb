// Whether a host is this machine, by its name or IP alone.

export function isLoopback(host: string): boolean {
  return host === 'localhost' || /^\[?(::1|(::ffff:)?127\.\d+\.\d+\.\d+)\]?$/.test(host);
}
