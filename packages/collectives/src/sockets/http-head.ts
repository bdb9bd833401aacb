// Reads the head of one HTTP message off a connection, within a bound and in one form. Node's own
// HTTP answers any number of requests of a connection, and reads a body without end, from anybody.

const BLANK_LINE = '\r\n\r\n';
const HEADER = /^([!#$%&'*+\-.^_`|~\w]+):([\x20-\x7e]*)$/;

/** The part of Node's sockets that a head is read with. */
export interface HeadSocket {
  on(event: 'data', listener: (bytes: Uint8Array) => void): unknown;
  off(event: 'data', listener: (bytes: Uint8Array) => void): unknown;
  pause(): unknown;
  resume(): unknown;
}

/** What was read of a connection up to its first blank line, and what had come behind that. */
export type ReadHead =
  | { readonly text: string; readonly rest: Uint8Array }
  /** It begins with something else than was expected. */
  | 'foreign'
  | 'too long';

/**
 * Reads a connection up to the first blank line, and leaves it paused. `onHead` gets a word instead
 * where that does not begin with `start`, or has no blank line within `maxBytes`.
 */
export function readHead(
  socket: HeadSocket,
  { start, maxBytes }: { readonly start: string; readonly maxBytes: number },
  onHead: (head: ReadHead) => void,
): void {
  let read = Buffer.alloc(0);
  const take = (bytes: Uint8Array) => {
    read = Buffer.concat([read, bytes]);
    const end = read.indexOf(BLANK_LINE) + BLANK_LINE.length;
    const isWhole = end >= BLANK_LINE.length && end <= maxBytes;
    const isOurs = start.startsWith(read.toString('latin1', 0, start.length));
    if (isOurs && !isWhole && read.length < maxBytes) {
      return;
    }
    socket.off('data', take);
    socket.pause();
    if (isOurs && isWhole) {
      onHead({ text: read.toString('latin1', 0, end), rest: read.subarray(end) });
    } else {
      onHead(isOurs ? 'too long' : 'foreign');
    }
  };
  socket.on('data', take);
  socket.resume();
}

/** The first line of a message, and its headers by their names in small letters. */
export interface HttpHead {
  readonly line: string;
  readonly headers: ReadonlyMap<string, string>;
}

/**
 * The parts of a head that `readHead` has read. Undefined where two readers could differ about it:
 * with a header twice, on several lines or of characters beyond printable ASCII, or with bare line
 * feeds. A body, which a header may announce, is what comes behind it.
 */
export function parseHead(text: string): HttpHead | undefined {
  const [line, ...lines] = text.slice(0, -BLANK_LINE.length).split('\r\n');
  const headers = new Map<string, string>();
  for (const each of lines) {
    const [, name, value] = HEADER.exec(each) ?? [];
    if (name === undefined || headers.has(name.toLowerCase())) {
      return undefined;
    }
    headers.set(name.toLowerCase(), value!.trim());
  }
  return { line: line!, headers };
}
