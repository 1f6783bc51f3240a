import './style.css';

import { createRoot } from 'react-dom/client';

import { App } from './app';
import { linkOf } from './link';
import { SpeechProvider } from './text/speech';

/** Takes a one-time link out of the address, so that neither the history nor a glance at the window shows it. */
function takeLink(): string | null {
  const link = linkOf(location.hash);
  if (location.hash !== '') history.replaceState(null, '', location.pathname + location.search);
  return link;
}

// a page that the browser kept and shows again may be somebody else's by now
window.addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload();
});

const root = document.getElementById('root');
if (root !== null) {
  createRoot(root).render(
    <SpeechProvider>
      <App firstLink={takeLink()} takeLink={takeLink} />
    </SpeechProvider>,
  );
}
