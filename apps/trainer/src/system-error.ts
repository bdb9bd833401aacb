// Describes an error of the operating system in words, because Node's own messages begin with codes
// and end with paths.

import { getSystemErrorMap } from 'node:util';
import type { StoreLockedError } from '@shardweave/shard-store';

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

/** The codes of the limits of open files: that of a process, and that of the machine. */
const TOO_MANY_FILES: readonly unknown[] = ['EMFILE', 'ENFILE'];

/** What helps where a limit of files is reached; undefined after another error. */
export function fileLimitHint(error: unknown): string | undefined {
  const code = (error as NodeJS.ErrnoException | null | undefined)?.code;
  if (code === 'EFBIG') {
    return 'Raise the limit of the size of files (ulimit -f), or take a disk that holds larger ones.';
  }
  return TOO_MANY_FILES.includes(code)
    ? 'Raise the limit of open files (ulimit -n), or take fewer ranks in a process.'
    : undefined;
}

/** What helps where the owner of a directory may be gone; empty where it is known to live. */
export function ownerHint({ file }: StoreLockedError): string {
  return file === undefined ? '' : ` If that one is gone, remove ${file}.`;
}
