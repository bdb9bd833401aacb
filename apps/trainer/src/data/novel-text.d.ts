/** The novel, gzipped, in base64; tooling/tsup/novel.mjs makes it. */
declare module '*/novel.txt.gz' {
  export const NOVEL_GZIP: string;
}
