// Whether a host is this machine, by its name or IP alone.

export const LOOPBACK = '127.0.0.1';

export function isLoopback(host: string): boolean {
  return host === 'localhost' || /^\[?(::1|(::ffff:)?127\.\d+\.\d+\.\d+)\]?$/.test(host);
}
