import type { MouseEvent, ReactNode } from 'react';

import { go } from './route';

/** A link to another page of the console, which every other way of opening a link leaves to the browser. */
export function PageLink({
  path,
  children,
  here = false,
}: {
  path: string;
  children: ReactNode;
  here?: boolean;
}) {
  const click = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(path);
  };
  return (
    <a href={path} aria-current={here ? 'page' : undefined} onClick={click}>
      {children}
    </a>
  );
}
