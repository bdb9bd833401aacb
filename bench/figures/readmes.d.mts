export const REPORTS: string;
export function readmePaths(): readonly string[];
export function withoutFigures(text: string): string;
export function blocksIn(text: string): readonly string[];
export function rendered(path: string, text: string): string;
export function renderReadmes(): readonly string[];
