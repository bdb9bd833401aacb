export const NOVEL_FOLDER: string;
export function readNovel(): string;
export function novelModule(): string;
