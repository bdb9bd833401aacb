// Tells from a host's name or IP alone whether it is this machine.

export const LOOPBACK = '127.0.0.1';

const LOOPBACK_ADDRESS = /^\[?(::1|(::ffff:)?127(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3})\]?$/;

/**
 * The address to listen on or to dial for a name. A machine may know localhost by two addresses,
 * and then another user may listen on the one that a rank has not taken: so it is 127.0.0.1 to all.
 */
export function addressOfName(host: string): string {
  return host === 'localhost' ? LOOPBACK : host;
}

/** Whether nobody but this machine's users is behind that name or address. */
export function isLoopback(host: string): boolean {
  return LOOPBACK_ADDRESS.test(addressOfName(host));
}
