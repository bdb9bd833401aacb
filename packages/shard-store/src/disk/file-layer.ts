// The few calls that stores and saves make of a file system, so that tests can make them fail. All
// paths are absolute; errors are Node's, with their `code`.

/** The calls of a file system that stores on disk make. */
export interface FileLayer {
  /** Opens a file for reading; rejects with ENOENT where there is none. */
  openToRead(path: string): Promise<OpenFile>;
  /** Opens a file for reading and writing; creates it where needed and never truncates it. */
  openToWrite(path: string): Promise<OpenFile>;
  /**
   * Creates a file; rejects with EEXIST where there is one. Long writes of whole pages may go past
   * the system's page cache.
   */
  create(path: string): Promise<OpenFile>;
  rename(from: string, to: string): Promise<void>;
  /** Gives a file a second name, which must be new. */
  link(from: string, to: string): Promise<void>;
  unlink(path: string): Promise<void>;
  list(directory: string): Promise<readonly string[]>;
  /**
   * Creates a directory and what is missing above it; resolves to the first one that it created, if
   * any.
   */
  makeDirectory(path: string): Promise<string | undefined>;
  /** Makes renames and new files in a directory durable, where the platform can. */
  syncDirectory(path: string): Promise<void>;
}

/** An open file of a file layer; positions and lengths are in bytes. */
export interface OpenFile {
  /**
   * Resolves to the number of bytes read, perhaps fewer than asked for; 0 at the end of the file.
   */
  read(into: Uint8Array, position: number): Promise<number>;
  /** Resolves to the number of bytes written, perhaps fewer than given. */
  write(bytes: Uint8Array, position: number): Promise<number>;
  truncate(byteLength: number): Promise<void>;
  byteLength(): Promise<number>;
  /** The number of names that the file has. */
  linkCount(): Promise<number>;
  /** Makes durable what was written, including what other handles of the file wrote. */
  sync(): Promise<void>;
  close(): Promise<void>;
}

/**
 * Gives a file a second name; false where the file system has no second names, or `to` lies on
 * another file system.
 */
export async function linkIfPossible(files: FileLayer, from: string, to: string): Promise<boolean> {
  try {
    await files.link(from, to);
    return true;
  } catch (error) {
    if (NO_LINKS.has((error as NodeJS.ErrnoException).code ?? '')) {
      return false;
    }
    throw error;
  }
}

/** The errors of file systems that have no second names, or not there, or no more of them. */
const NO_LINKS = new Set(['EXDEV', 'EPERM', 'EACCES', 'ENOSYS', 'ENOTSUP', 'EOPNOTSUPP', 'EMLINK']);

/** The contents of a file. */
export async function readWhole(files: FileLayer, path: string): Promise<Uint8Array> {
  return withFile(files.openToRead(path), async (file) => {
    const parts: Uint8Array[] = [];
    for (let position = 0; ; ) {
      const part = new Uint8Array(64 * 1024); // a manifest of a few hundred values
      const count = await file.read(part, position);
      if (count === 0) {
        return new Uint8Array(Buffer.concat(parts));
      }
      parts.push(part.subarray(0, count));
      position += count;
    }
  });
}

/** Writes all of `bytes` at `position`, however few a single call takes. */
export async function writeFully(
  file: OpenFile,
  bytes: Uint8Array,
  position: number,
): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const count = await file.write(bytes.subarray(done), position + done);
    if (count === 0) {
      throw new Error(`wrote 0 of ${bytes.byteLength - done} bytes`);
    }
    done += count;
  }
}

/** Runs `body` on a file and closes it, whether or not `body` fails. */
export async function withFile<T>(
  opening: Promise<OpenFile>,
  body: (file: OpenFile) => Promise<T>,
): Promise<T> {
  const file = await opening;
  let result: T;
  try {
    result = await body(file);
  } catch (error) {
    await file.close().catch(() => {}); // the first error is the one to report
    throw error;
  }
  await file.close();
  return result;
}
