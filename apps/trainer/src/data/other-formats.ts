// Files that hold texts in another form, told by how they begin: the bytes of some pass for UTF-8,
// and of the others a person learns more by their name than by the byte that is wrong.

/** The bytes of a file's beginning that are enough to tell. */
export const HEAD_BYTES = 64;

const UNPACK = 'Unpack it first';
const CONVERT = 'Write its texts as a text file or as JSON lines first';
const SAVE = 'Save it as UTF-8 first';

interface OtherFormat {
  /** What the file is, in words that follow its name. */
  readonly is: string;
  readonly remedy: string;
}

const TAR: OtherFormat = { is: 'is an archive (tar)', remedy: UNPACK };
const UTF_16: OtherFormat = { is: 'is text in UTF-16', remedy: SAVE };

/** Files by their first bytes, which stand as Latin-1. */
const FORMATS: readonly (readonly [begin: string, format: OtherFormat])[] = [
  ['\xfd7zXZ\0', { is: 'is compressed (xz)', remedy: UNPACK }],
  ['BZh91AY&SY', { is: 'is compressed (bzip2)', remedy: UNPACK }],
  ['PK\x03\x04', { is: 'is an archive (zip)', remedy: UNPACK }],
  ['ARROW1\0\0', { is: 'is a table (Arrow)', remedy: CONVERT }],
  ['%PDF-', { is: 'is a document (PDF)', remedy: CONVERT }],
  ['\xff\xfe', UTF_16],
  ['\xfe\xff', UTF_16],
];

/** An archive begins with the name of its first file, so only its own name tells what it is. */
const TAR_NAME = /\.(tar(\.(gz|zst))?|tgz|tzst)$/i;

/**
 * What a file is by its first bytes; undefined for what may be a text in UTF-8, compressed or not.
 */
export function otherFormat(head: Uint8Array, file = ''): OtherFormat | undefined {
  if (TAR_NAME.test(file)) {
    return TAR;
  }
  const text = Buffer.from(head).toString('latin1');
  const found = FORMATS.find(([begin]) => text.startsWith(begin));
  return found?.[1] ?? (isWide(head) ? UTF_16 : undefined);
}

/** Whether of each two bytes one is 0, always the first or always the second. */
function isWide(head: Uint8Array): boolean {
  const isZeroAt = (rest: number) => head.every((byte, i) => (byte === 0) === (i % 2 === rest));
  return head.length >= 4 && (isZeroAt(0) || isZeroAt(1));
}
