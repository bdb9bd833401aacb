// Describes an error of the operating system in words, because Node's own messages begin with codes
// and end with paths.

import { getSystemErrorMap } from 'node:util';

/**
 * The words for an error, such as `no such file or directory` for an ENOENT; the message itself
 * where the error is not the system's.
 */
export function describeSystemError(error: unknown): string {
  const { code, errno, message } = error as NodeJS.ErrnoException;
  if (code === 'EISDIR') {
    return 'it is a directory'; // the system's word for it is an illegal operation
  }
  return (errno === undefined ? undefined : getSystemErrorMap().get(errno)?.[1]) ?? message;
}
