// Tells from a host's name or IP alone whether it is this machine.

export const LOOPBACK = '127.0.0.1';

export function isLoopback(host: string): boolean {
  return host === 'localhost' || /^\[?(::1|(::ffff:)?127\.\d+\.\d+\.\d+)\]?$/.test(host);
}
