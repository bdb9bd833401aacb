// What the operating system said, in words: Node's own messages begin with codes and end with
// paths.

import { getSystemErrorMap } from 'node:util';

/** `no such file or directory` for an ENOENT; the message itself for what the system didn't say. */
export function describeSystemError(error: unknown): string {
  const { code, errno, message } = error as NodeJS.ErrnoException;
  if (code === 'EISDIR') {
    return 'it is a directory'; // the system's word for it is an illegal operation
  }
  return (errno === undefined ? undefined : getSystemErrorMap().get(errno)?.[1]) ?? message;
}
