// Scrolling that follows an answer while it is written, and yields as soon as the reader scrolls up.

const MARGIN = 24; // px kept free beneath the text that is followed

export function follower(scroller, button) {
  let target = null;
  let isFollowing = false;
  let lastTop = 0;

  const below = () => (target ? target.getBoundingClientRect().bottom - scroller.getBoundingClientRect().bottom + MARGIN : 0);
  const showButton = () => (button.hidden = !target || isFollowing || below() <= MARGIN);
  const go = () => {
    scroller.scrollTop += Math.max(0, below());
    lastTop = scroller.scrollTop;
  };

  scroller.addEventListener("scroll", () => {
    if (scroller.scrollTop < lastTop - 2) isFollowing = false;
    else if (below() <= MARGIN) isFollowing = true;
    lastTop = scroller.scrollTop;
    showButton();
  });
  button.addEventListener("click", () => {
    isFollowing = true;
    go();
    showButton();
  });

  return {
    /** Put a new turn at the top, and follow this element of it. */
    begin(turn, element) {
      target = element;
      scroller.scrollTop = turn.offsetTop;
      lastTop = scroller.scrollTop;
      isFollowing = true;
    },
    grown(element) {
      if (element !== target) return;
      if (isFollowing) go();
      showButton();
    },
    end() {
      target = null;
      showButton();
    },
  };
}
