// The home of the user who started the command, which not everybody has.

import { homedir, userInfo } from 'node:os';

interface System {
  readonly homedir: () => string;
  readonly userInfo: () => { readonly homedir: string };
}

/**
 * The home directory; undefined where the environment names none and the system does not know the
 * user, as in a container that runs under a number.
 */
export function homeDirectory(system: System = { homedir, userInfo }): string | undefined {
  try {
    return system.homedir() || system.userInfo().homedir || undefined;
  } catch {
    return undefined;
  }
}
