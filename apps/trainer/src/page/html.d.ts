/** The page with its script and style inside; tooling/tsup/page-text.ts makes it. */
declare module '*/page/index.html' {
  export const PAGE_HTML: string;
}
